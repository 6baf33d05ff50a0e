#include "../kernels/interleave.hpp"
#include "../text/packing.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

auto interleave_shares(const Int64s& shares) {
    uint64_t period = 0;
    for (size_t i = 0; i < shares.size(); ++i)
        period += shares.data()[i] > 0 ? static_cast<uint64_t>(shares.data()[i]) : 0;
    if (period > uint64_t{1} << 22) throw std::invalid_argument("the period is too long");
    auto source = std::make_unique_for_overwrite<uint32_t[]>(period);
    auto turn = std::make_unique_for_overwrite<uint32_t[]>(period);
    {
        nb::gil_scoped_release unlocked;
        interleave({shares.data(), shares.size()}, {source.get(), period}, {turn.get(), period});
    }
    return std::tuple{array_of(source, period), array_of(turn, period)};
}

const std::vector<std::string> packings{"none", "first_fit", "best_fit", "concat_split"};
const std::vector<std::string> ways{"split", "truncate", "drop"};

int index_of(const std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw std::invalid_argument("there is no " + name);
    return static_cast<int>(found - names.begin());
}

auto pack_documents(const Int64s& sizes, int64_t length, const std::string& strategy, const std::string& overlong) {
    const auto how = static_cast<Packing>(index_of(packings, strategy));
    const auto longer = static_cast<Overlong>(index_of(ways, overlong));
    Packs made;
    {
        nb::gil_scoped_release unlocked;
        made = pack({sizes.data(), sizes.size()}, length, how, longer);
    }
    return std::tuple{copy_of(made.rows), copy_of(made.document), copy_of(made.start), copy_of(made.count)};
}

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Optional = std::optional<Matrix<T>>;

// Inputs of the rows, as they come from Python.
struct Given {
    std::vector<std::span<const uint8_t>> documents;
    Pieces pieces;
    std::span<const int64_t> prompt;
};

int64_t checked_multiple(int64_t multiple) {
    if (multiple < 1 || multiple > int64_t{1} << 24) throw std::invalid_argument("no row has a multiple of that");
    return multiple;
}

template <typename In, typename Out>
void fill_as(const Given& given, const Rows<Out>& out) {
    Documents<In> from{{}, given.prompt};
    from.tokens.reserve(given.documents.size());
    for (const auto& one : given.documents) {
        if (reinterpret_cast<uintptr_t>(one.data()) % alignof(In) || one.size() % sizeof(In)) {
            throw std::invalid_argument("a document is not made of whole tokens at their places");
        }
        from.tokens.emplace_back(reinterpret_cast<const In*>(one.data()), one.size() / sizeof(In));
    }
    fill_rows<In, Out>(from, given.pieces, out);
}

template <typename Out>
void fill(const nb::typed<nb::list, Bytes>& bases, const Int32s& base, const Int64s& begin, const Int64s& size,
          const std::string& dtype, const std::optional<Int64s>& prompt, const Int64s& rows, const Int64s& document,
          const Int64s& start, const Int64s& count, const Matrix<Out>& into, const Optional<Out>& labels,
          const Optional<Out>& position, const Optional<int32_t>& documents, const Optional<uint8_t>& learned,
          int64_t pad, int64_t ignore, std::optional<int64_t> end, bool shifted, int64_t multiple) {
    const auto data = [&](const auto& one) {
        if (one && (one->shape(0) != into.shape(0) || one->shape(1) != into.shape(1))) {
            throw std::invalid_argument("the arrays of rows are not of one shape");
        }
        return one ? one->data() : nullptr;
    };
    if (rows.size() != into.shape(0) + 1 || start.size() != document.size() || count.size() != document.size() ||
        begin.size() != base.size() || size.size() != base.size() || (prompt && prompt->size() != base.size())) {
        throw std::invalid_argument("the arrays of pieces do not fit each other");
    }
    std::vector<Bytes> arrays;
    for (nb::handle item : bases) {
        Bytes array;
        if (!nb::try_cast<Bytes>(item, array, false)) throw nb::type_error("bases must be arrays of uint8");
        arrays.push_back(std::move(array));
    }
    const auto span = [](const Int64s& one) { return std::span(one.data(), one.size()); };
    Given given{{},
                {span(rows), span(document), span(start), span(count), checked_multiple(multiple)},
                prompt ? span(*prompt) : span(rows).first(0)};
    given.documents.reserve(base.size());
    for (size_t i = 0; i < base.size(); ++i) {
        const auto number = static_cast<size_t>(base.data()[i]);
        const auto from = static_cast<uint64_t>(begin.data()[i]), bytes = static_cast<uint64_t>(size.data()[i]);
        if (number >= arrays.size() || from > arrays[number].size() || bytes > arrays[number].size() - from) {
            throw std::invalid_argument("a document is not within its file");
        }
        given.documents.emplace_back(arrays[number].data() + from, bytes);
    }
    const Rows<Out> out{static_cast<int64_t>(into.shape(1)),
                        into.data(),
                        data(labels),
                        data(position),
                        data(documents),
                        data(learned),
                        static_cast<Out>(pad),
                        static_cast<Out>(ignore),
                        end.has_value(),
                        static_cast<Out>(end.value_or(0)),
                        shifted};
    nb::gil_scoped_release unlocked;
    if (dtype == "uint8") return fill_as<uint8_t, Out>(given, out);
    if (dtype == "uint16") return fill_as<uint16_t, Out>(given, out);
    if (dtype == "int32") return fill_as<int32_t, Out>(given, out);
    if (dtype == "uint32") return fill_as<uint32_t, Out>(given, out);
    if (dtype == "int64") return fill_as<int64_t, Out>(given, out);
    throw std::invalid_argument("tokens are not " + dtype);
}

template <typename Out>
void bind_fill(nb::module_& module) {
    module.def("fill_rows", fill<Out>, nb::arg("bases"), array_arg("base"), array_arg("begin"), array_arg("size"),
               nb::arg("dtype"), array_arg("prompt").none(), array_arg("rows"), array_arg("document"),
               array_arg("start"), array_arg("count"), array_arg("into"), array_arg("labels").none(),
               array_arg("position").none(), array_arg("documents").none(), array_arg("learned").none(), nb::arg("pad"),
               nb::arg("ignore"), nb::arg("end").none(), nb::arg("shifted"), nb::arg("multiple") = 1,
               R"(Put the pieces that pack found into rows.

Document i is size[i] bytes at begin[i] of bases[base[i]], tokens of that dtype at whole
places. prompt: how many tokens of each are not learned. into, labels, position, documents,
learned: rows to fill, the tokens themselves and what is told of each; None: not. multiple: each piece is
padded to a multiple of so many tokens.)");
}

auto layout(const Int64s& rows, const Int64s& document, const Int64s& start, const Int64s& count, int64_t length,
            bool across, int64_t multiple) {
    if (start.size() != document.size() || count.size() != document.size()) {
        throw std::invalid_argument("the arrays of pieces do not fit each other");
    }
    const auto span = [](const Int64s& one) { return std::span(one.data(), one.size()); };
    Layout made =
        layout_of({span(rows), span(document), span(start), span(count), checked_multiple(multiple)}, length, across);
    return std::tuple{copy_of(made.table), copy_of(made.cuts)};
}

}  // namespace

void bind_packing(nb::module_& module) {
    module.def("interleave", interleave_shares, array_arg("shares"),
               R"(One period of a mixture: who comes at each place, and how often it came before.

Each source comes as often as its share says, and at every place as often as it should, give or take 1.)");
    module.def("pack", pack_documents, array_arg("sizes"), nb::arg("length"), nb::arg("strategy"), nb::arg("overlong"),
               R"(Rows of one length for documents of these sizes: (rows, document, start, count).

Row r has the pieces rows[r] to rows[r + 1], each so many tokens of a document from a start on.
strategy: none, first_fit, best_fit or concat_split. overlong: split, truncate or drop.)");
    bind_fill<int32_t>(module);
    bind_fill<int64_t>(module);
    module.def("lay_out", layout, array_arg("rows"), array_arg("document"), array_arg("start"), array_arg("count"),
               nb::arg("length"), nb::arg("across"), nb::arg("multiple") = 1,
               R"(Where pieces stand: five numbers of each (row, place, count, start, document), and the cuts.

Cuts are where sequences begin in the rows as one, and last where they end. Each piece is a sequence, with
its padding to a multiple of so many tokens; with across each row. So is the padding at the end of a row.)");
}

}  // namespace batchplant
