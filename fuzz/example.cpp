#include "../native/records/example.hpp"

#include <vector>

#include "common.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace batchplant;
    // Two records, of which the first is the whole input.
    const std::vector<int64_t> starts{0, static_cast<int64_t>(size / 2)};
    const std::vector<int64_t> sizes{static_cast<int64_t>(size), static_cast<int64_t>(size - size / 2)};

    ExampleSurvey survey;
    const int64_t bad = survey.add(data, starts.data(), sizes.data(), 2);
    expect(bad >= -1 && bad < 2);
    expect(survey.foreign >= 0 && survey.foreign <= survey.records && survey.foreign <= survey.unknown);
    std::vector<ExampleRequest> requests;
    for (const ExampleFeature& one : survey.features()) {
        expect(one.present > 0 && one.present <= 2 && one.fewest >= 0 && one.most >= one.fewest);
        for (const ExampleKind kind : {ExampleKind::none, one.first}) requests.push_back({one.name, one.list, kind});
    }
    // The table of names may hold each of them once.
    for (size_t half = 0; half < 2; ++half) {
        std::vector<ExampleRequest> some;
        for (size_t w = half; w < requests.size(); w += 2) some.push_back(requests[w]);
        some.push_back({"image", false, ExampleKind::bytes});
        const ExampleBatch batch = read_examples(data, starts.data(), sizes.data(), 2, some);
        expect(batch.bad_row >= -1 && batch.bad_row < 2);
        // The survey only counts the bytes of numbers, so a number that is too long may pass it.
        expect(batch.bad_row == -1 || (batch.bad_at >= 0 && batch.bad_at <= static_cast<int64_t>(size)));
        for (const ExampleColumn& column : batch.columns) {
            expect(column.kind.size() == column.count.size());
            expect(column.runs.size() % 2 == 0);
            for (size_t run = 0; run < column.runs.size(); run += 2) {
                expect(column.runs[run] >= 0 && column.runs[run + 1] >= 0);
                expect(column.runs[run] + column.runs[run + 1] <= static_cast<int64_t>(size));
            }
        }
    }

    // What is written is read again.
    const std::vector<int64_t> floats{static_cast<int64_t>(size / 4 * 4), -1};
    const std::vector<int64_t> ints{-1, static_cast<int64_t>((size - size / 2) / 8 * 8)};
    const std::vector<int64_t> counts{-1, 2};
    std::vector<int64_t> offsets(3);
    const std::vector<uint8_t> out =
        write_examples({{"i", ExampleKind::ints, data, starts.data(), ints.data()},
                        {"f", ExampleKind::floats, data, starts.data(), floats.data()},
                        {"b", ExampleKind::bytes, data, starts.data(), sizes.data(), counts.data()},
                        {"a", ExampleKind::bytes, data, starts.data(), sizes.data()}},
                       2, offsets.data());
    const std::vector<int64_t> lengths{offsets[1], offsets[2] - offsets[1]};
    const ExampleBatch again = read_examples(out.data(), offsets.data(), lengths.data(), 2,
                                             {{"a", false, ExampleKind::bytes},
                                              {"b", false, ExampleKind::bytes},
                                              {"f", false, ExampleKind::floats},
                                              {"i", false, ExampleKind::ints}});
    expect(again.bad_row == -1);
    expect(again.columns[0].count == std::vector<int64_t>({1, 1}) && again.columns[0].runs[1] == sizes[0]);
    expect(again.columns[1].count == counts && again.columns[1].runs[3] == sizes[1]);
    expect(again.columns[2].count[0] == floats[0] / 4 && again.columns[2].count[1] == -1);
    expect(again.columns[3].count[0] == -1 && again.columns[3].count[1] == ints[1] / 8);
    return 0;
}
