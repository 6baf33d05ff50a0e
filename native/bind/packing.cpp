#include "../kernels/interleave.hpp"
#include "../text/packing.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

auto interleave_shares(const Int64s& shares) {
    uint64_t period = 0;
    for (size_t i = 0; i < shares.size(); ++i) period += shares.data()[i] > 0 ? static_cast<uint64_t>(shares.data()[i]) : 0;
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

template <typename In, typename Out>
void fill(const Borrowed<In>& tokens, const Int64s& offsets, const std::optional<Int64s>& prompt, const Int64s& rows,
          const Int64s& document, const Int64s& start, const Int64s& count, const Matrix<Out>& into,
          const Optional<Out>& labels, const Optional<Out>& position, const Optional<int32_t>& documents,
          const Optional<uint8_t>& learned, int64_t pad, int64_t ignore, std::optional<int64_t> end, bool shifted) {
    const auto data = [&](const auto& one) {
        if (one && (one->shape(0) != into.shape(0) || one->shape(1) != into.shape(1))) {
            throw std::invalid_argument("the arrays of rows are not of one shape");
        }
        return one ? one->data() : nullptr;
    };
    if (rows.size() != into.shape(0) + 1 || start.size() != document.size() || count.size() != document.size() ||
        (prompt && prompt->size() + 1 != offsets.size())) {
        throw std::invalid_argument("the arrays of pieces do not fit each other");
    }
    const auto span = [](const Int64s& one) { return std::span(one.data(), one.size()); };
    const Documents<In> from{{tokens.data(), tokens.size()}, span(offsets), prompt ? span(*prompt) : span(offsets).first(0)};
    const Rows<Out> out{static_cast<int64_t>(into.shape(1)), into.data(), data(labels), data(position), data(documents),
                        data(learned), static_cast<Out>(pad), static_cast<Out>(ignore), end.has_value(),
                        static_cast<Out>(end.value_or(0)), shifted};
    nb::gil_scoped_release unlocked;
    fill_rows<In, Out>(from, {span(rows), span(document), span(start), span(count)}, out);
}

template <typename In, typename Out>
void bind_fill(nb::module_& module) {
    module.def("fill_rows", fill<In, Out>, array_arg("tokens"), array_arg("offsets"), array_arg("prompt").none(),
               array_arg("rows"), array_arg("document"), array_arg("start"), array_arg("count"), array_arg("into"),
               array_arg("labels").none(), array_arg("position").none(), array_arg("documents").none(),
               array_arg("learned").none(), nb::arg("pad"), nb::arg("ignore"), nb::arg("end").none(), nb::arg("shifted"),
               R"(Put the pieces that pack found into rows.

tokens, offsets: the documents. prompt: how many tokens of each are not learned. into, labels,
position, documents, learned: rows to fill, the tokens themselves and what is told of each; None: not.)");
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
    bind_fill<uint8_t, int32_t>(module);
    bind_fill<uint8_t, int64_t>(module);
    bind_fill<uint16_t, int32_t>(module);
    bind_fill<uint16_t, int64_t>(module);
    bind_fill<int32_t, int32_t>(module);
    bind_fill<int32_t, int64_t>(module);
    bind_fill<uint32_t, int32_t>(module);
    bind_fill<uint32_t, int64_t>(module);
    bind_fill<int64_t, int32_t>(module);
    bind_fill<int64_t, int64_t>(module);
}

}  // namespace batchplant
