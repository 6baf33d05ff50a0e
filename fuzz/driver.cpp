// A small stand-in for libFuzzer where clang is not at hand: it feeds mutated seeds to
// LLVMFuzzerTestOneInput until the time is up. It sees no coverage, so good seeds matter.
//
// usage: TARGET [--seconds N] [--seed N] [--only] FILE_OR_FOLDER...
//   --only   run the files as they are and stop, to repeat a crash

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr unsigned slowest_input_seconds = 20;
constexpr const char* crash_path = "fuzz-crash.bin";

const uint8_t* current_data = nullptr;
size_t current_size = 0;

void save_current_input() {
    std::FILE* file = std::fopen(crash_path, "wb");
    if (file == nullptr) return;
    std::fwrite(current_data, 1, current_size, file);
    std::fclose(file);
    std::fprintf(stderr, "input saved as %s\n", crash_path);
}

void on_alarm(int) {
    std::fprintf(stderr, "one input took more than %u seconds\n", slowest_input_seconds);
    save_current_input();
    std::_Exit(1);
}

// A target that finds a wrong answer aborts, which is no matter of the sanitizer's.
void on_abort(int) {
    save_current_input();
    std::_Exit(1);
}

void run_one(const Bytes& input) {
    // A heap block of exactly this size, so that the sanitizer sees a read of even one byte too far.
    auto exact = std::make_unique<uint8_t[]>(input.size());
    std::copy(input.begin(), input.end(), exact.get());
    current_data = exact.get();
    current_size = input.size();
    alarm(slowest_input_seconds);
    LLVMFuzzerTestOneInput(exact.get(), input.size());
    alarm(0);
}

class Mutator {
public:
    Mutator(const std::vector<Bytes>& seeds, uint64_t seed) : seeds_(seeds), random_(seed) {}

    Bytes next() {
        Bytes input = pick_seed();
        const size_t steps = 1 + below(6);
        for (size_t i = 0; i < steps; ++i) mutate(input);
        return input;
    }

private:
    size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
    const Bytes& pick_seed() { return seeds_[below(seeds_.size())]; }

    void mutate(Bytes& input) {
        switch (below(6)) {
            case 0: return flip_bit(input);
            case 1: return set_byte(input);
            case 2: return truncate(input);
            case 3: return splice(input);
            case 4: return insert_magic(input);
            default: return repeat_piece(input);
        }
    }

    void flip_bit(Bytes& input) {
        if (!input.empty()) input[below(input.size())] ^= static_cast<uint8_t>(1u << below(8));
    }

    void set_byte(Bytes& input) {
        if (!input.empty()) input[below(input.size())] = static_cast<uint8_t>(random_());
    }

    void truncate(Bytes& input) { input.resize(below(input.size() + 1)); }

    void splice(Bytes& input) {
        const Bytes& other = pick_seed();
        input.resize(below(input.size() + 1));
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), other.end());
    }

    // Numbers at the edges of their types, and the markers that parsers look for.
    void insert_magic(Bytes& input) {
        static const std::vector<std::string_view> magics = {
            {"\x00\x00\x00\x00", 4},
            {"\xFF\xFF\xFF\xFF", 4},
            {"\x7F\xFF\xFF\xFF", 4},
            {"\xFF\xFF\xFF\x7F", 4},
            {"\x80\x00\x00\x00", 4},
            {"\x00\x00\x00\x80", 4},
            {"\x00\x01", 2},
            {"\xFF\xFF", 2},
            {"\xFF\xC0", 2},
            {"\xFF\xC2", 2},
            {"\xFF\xC4", 2},
            {"\xFF\xDA", 2},
            {"\xFF\xD9", 2},
            {"\xFF\xDD", 2},
            {"\xFF\xCC", 2},
            {"IHDR", 4},
            {"VP8 ", 4},
            {"VP8L", 4},
            {"VP8X", 4},
            {"II*\x00", 4},
            {"MM\x00*", 4},
        };
        const auto magic = magics[below(magics.size())];
        const size_t at = below(input.size() + 1);
        const bool overwrite = below(2) == 0 && magic.size() <= input.size() - at;
        if (overwrite) {
            std::memcpy(input.data() + at, magic.data(), magic.size());
        } else {
            input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), magic.begin(), magic.end());
        }
    }

    void repeat_piece(Bytes& input) {
        const size_t from = below(input.size());
        const Bytes piece(input.begin() + static_cast<std::ptrdiff_t>(from),
                          input.begin() + static_cast<std::ptrdiff_t>(from + below(input.size() - from + 1)));
        const size_t to = below(input.size() + 1);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(to), piece.begin(), piece.end());
    }

    const std::vector<Bytes>& seeds_;
    std::mt19937_64 random_;
};

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

struct Options {
    double seconds = 60;
    uint64_t seed = 1;
    bool only = false;
    std::vector<Bytes> seeds;
};

void add_seeds(Options& options, const std::filesystem::path& path) {
    if (!std::filesystem::is_directory(path)) {
        options.seeds.push_back(read_file(path));
        return;
    }
    // In order of their names, so that one --seed means one sequence on every machine.
    std::vector<std::filesystem::path> paths(std::filesystem::directory_iterator(path), {});
    std::sort(paths.begin(), paths.end());
    for (const auto& file : paths) options.seeds.push_back(read_file(file));
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const bool has_value = i + 1 < argc;
        if (argument == "--seconds" && has_value) {
            options.seconds = std::stod(argv[++i]);
        } else if (argument == "--seed" && has_value) {
            options.seed = std::stoull(argv[++i]);
        } else if (argument == "--only") {
            options.only = true;
        } else {
            add_seeds(options, argument);
        }
    }
    if (options.seeds.empty()) options.seeds.emplace_back();
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    __sanitizer_set_death_callback(save_current_input);
    std::signal(SIGALRM, on_alarm);
    std::signal(SIGABRT, on_abort);
    for (const Bytes& seed : options.seeds) run_one(seed);
    if (options.only) return 0;
    Mutator mutator(options.seeds, options.seed);
    const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
    uint64_t count = 0;
    for (; Clock::now() < end; ++count) run_one(mutator.next());
    std::printf("%s: %llu inputs, no crash\n", argv[0], static_cast<unsigned long long>(count));
    return 0;
}
