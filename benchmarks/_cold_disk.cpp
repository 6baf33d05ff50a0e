// What a disk gives: runs of a file read by many threads, and nothing done with them.
//
//     disk FILE RUNS THREADS DIRECT SECONDS
//
// RUNS is a file of pairs of 64-bit numbers, start and size. DIRECT 1 reads past the page cache. Prints the bytes of
// the runs that were read, and the seconds that it took.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int64_t block = 4096;

struct Run {
    int64_t start, size;
};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int count, char** words) {
    if (count != 6) return 2;
    const int threads = atoi(words[3]);
    const bool direct = atoi(words[4]) != 0;
    const double limit = atof(words[5]);
    std::vector<Run> runs;
    int64_t largest = block;
    FILE* list = fopen(words[2], "rb");
    if (list == nullptr) return 1;
    for (Run one; fread(&one, sizeof one, 1, list) == 1;) {
        runs.push_back(one);
        largest = std::max(largest, one.size);
    }
    fclose(list);
    const int fd = open(words[1], O_RDONLY | (direct ? O_DIRECT : 0));
    if (fd < 0) {
        perror(words[1]);
        return 1;
    }
    std::atomic<size_t> next{0};
    std::atomic<int64_t> bytes{0};
    const double began = now();
    const auto read = [&] {
        auto* memory = static_cast<char*>(aligned_alloc(block, static_cast<size_t>((largest / block + 3) * block)));
        for (size_t i = next++; i < runs.size() && now() - began < limit; i = next++) {
            const Run run = runs[i];
            int64_t at = direct ? run.start / block * block : run.start;
            const int64_t end = run.start + run.size;
            while (at < end) {
                const int64_t size = direct ? (end - at + block - 1) / block * block : end - at;
                const ssize_t got = pread(fd, memory, static_cast<size_t>(size), at);
                if (got <= 0) break;
                at += got;
            }
            bytes += run.size;
        }
        free(memory);
    };
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) all.emplace_back(read);
    for (auto& one : all) one.join();
    printf("%lld %.6f\n", static_cast<long long>(bytes.load()), now() - began);
}
