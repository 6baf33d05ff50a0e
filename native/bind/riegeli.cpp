#include "../records/riegeli.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

using Failure = std::optional<std::tuple<size_t, std::string>>;

std::tuple<Array<uint8_t>, Array<int64_t>, Table<int64_t>, Failure> read(const Bytes& data, const Int64s& starts,
                                                                         const Int64s& sizes, const Int64s& positions) {
    check_same_length(starts, "starts", positions, "positions");
    const size_t n = starts.size();
    std::unique_ptr<uint8_t[]> out;
    auto places = std::make_unique_for_overwrite<int64_t[]>(n);
    auto heads = std::make_unique<int64_t[]>(4 * n);
    size_t end = 0;
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        check_runs(starts, sizes, data.size());
        size_t total = 0;
        for (size_t i = 0; i < n; ++i) total += static_cast<size_t>(sizes.data()[i]);
        out = std::make_unique_for_overwrite<uint8_t[]>(total);
        for (size_t i = 0; i < n && !failure; ++i) {
            const RiegeliChunk chunk =
                read_riegeli(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]),
                             static_cast<uint64_t>(positions.data()[i]), out.get() + end);
            if (chunk.error != nullptr) failure = std::make_tuple(i, std::string(chunk.error));
            places[i] = static_cast<int64_t>(end);
            int64_t* head = heads.get() + 4 * i;
            head[0] = chunk.kind, head[1] = chunk.size, head[2] = chunk.records, head[3] = chunk.decoded;
            end += static_cast<size_t>(chunk.size);
        }
    }
    return {array_of(out, end), array_of(places, n), table_of(heads, n, 4), failure};
}

std::tuple<Array<uint8_t>, Array<int64_t>> frame(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                                                 const Int64s& records, const Int64s& decoded, int64_t position,
                                                 int kind) {
    check_same_length(starts, "starts", records, "records");
    check_same_length(starts, "starts", decoded, "decoded");
    std::vector<uint8_t> out;
    std::vector<int64_t> places;
    {
        nb::gil_scoped_release unlocked;
        check_runs(starts, sizes, data.size());
        for (size_t i = 0; i < starts.size(); ++i) {
            places.push_back(position + static_cast<int64_t>(out.size()));
            const RiegeliChunk chunk{nullptr, sizes.data()[i], kind, records.data()[i], decoded.data()[i]};
            frame_riegeli(data.data() + starts.data()[i], chunk, static_cast<uint64_t>(places.back()), out);
        }
    }
    return {array_of(std::move(out)), array_of(std::move(places))};
}

}  // namespace

void bind_riegeli(nb::module_& module) {
    module.def("riegeli_read", read, array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("positions"),
               R"(Read the chunk at the beginning of every run, which lies at a position of its file.

The data of the chunks without block headers, where each begins, a row (kind, size, records, decoded
size) for each; and the first that is not sound: (run, reason).)");
    module.def("riegeli_frame", frame, array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("records"),
               array_arg("decoded"), nb::arg("position"), nb::arg("kind"),
               "The runs as chunks at a position of a file, with block headers; and where each chunk begins.");
}

}  // namespace batchplant
