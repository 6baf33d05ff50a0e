#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace batchplant {

// A fixed number of threads that share the work of parallel_for, an index at a time, so that a slow item
// delays only its thread. Several threads may call parallel_for at once: their calls are served in
// the order they came, and a thread that finds nothing left in one goes on with the next.
//
// A child made by fork has the memory of the pool but none of its threads. There parallel_for throws
// instead of waiting for ever, and the destructor leaves everything behind untouched: the locks may be
// held by threads that the child does not have.
class Pool {
public:
    // With cpus, thread i stays on cpus[i % cpus.size()]. The nicer they are, the more other threads go before them.
    explicit Pool(size_t threads, const std::vector<int>& cpus = {}, int nice = 0) : state_(std::make_unique<State>()) {
        if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
        try {
            const AllSignalsBlocked blocked;  // inherited by the threads: signals are the main thread's affair
            for (size_t i = 0; i < threads; ++i) {
                state_->threads.emplace_back([state = state_.get(), i, nice] {
                    // On Linux the priority is per thread. If setting it is not allowed, only speed is lost.
                    if (nice > 0) static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice));
                    state->serve(i);
                });
                if (!cpus.empty()) pin(state_->threads.back(), cpus[i % cpus.size()]);
            }
        } catch (...) {
            close();
            throw;
        }
    }

    ~Pool() { close(); }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Runs work(index, worker) for every index below n and returns when all are done. worker is below
    // the number of threads and no two calls with the same worker overlap, so it may own scratch memory.
    // The work must not throw; parallel_for itself throws std::runtime_error when the pool cannot run it.
    // With `take_part` the calling thread works too, as one worker more; other calls do not keep it waiting.
    template <typename Work>
    void parallel_for(size_t n, Work&& work, bool take_part = false) {
        static_assert(noexcept(work(size_t{}, size_t{})), "work in a pool must be noexcept");
        if (forked()) {
            throw std::runtime_error("the threads are in process " + std::to_string(pid_) +
                                     ", which this one was forked from: make a new engine after a fork");
        }
        if (n == 0) return;
        using Plain = std::remove_reference_t<Work>;
        Call call;
        call.count = n;
        call.work = &work;
        call.run = [](void* some, size_t index, size_t worker) noexcept {
            (*static_cast<Plain*>(some))(index, worker);
        };
        state_->run(call, take_part);
    }

    // Waits until there is no call left that a thread could begin with.
    void wait_turn() {
        if (!forked()) state_->wait_turn();
    }

    // Waits for the calls under way, then ends the threads. May be called twice.
    void close() {
        if (!forked()) return state_->stop();
        static_cast<void>(state_.release());  // see above: nothing in it may be touched
        state_ = std::make_unique<State>();
        state_->stopping = state_->joined = true;
    }

    // True if this process is a child of the one that has the threads. What the threads were working on may
    // then be in any state.
    bool forked() const { return getpid() != pid_; }

private:
    struct Call {
        size_t count = 0;
        void* work = nullptr;
        void (*run)(void*, size_t, size_t) noexcept = nullptr;
        std::atomic<size_t> next{0};
        size_t busy = 0;  // threads inside; guarded by the mutex
        bool done = false;
        std::condition_variable finished;
    };

    struct State {
        std::mutex mutex;
        std::condition_variable wake, handed_out;
        std::deque<Call*> calls;
        bool stopping = false;
        bool joined = false;
        std::vector<std::thread> threads;

        void run(Call& call, bool take_part) {
            std::unique_lock lock(mutex);
            if (stopping) throw std::runtime_error("its threads have ended: it was closed");
            calls.push_back(&call);
            wake.notify_all();
            if (take_part) work_on(call, threads.size(), lock);
            call.finished.wait(lock, [&] { return call.done; });
        }

        void work_on(Call& call, size_t worker, std::unique_lock<std::mutex>& lock) noexcept {
            ++call.busy;
            lock.unlock();
            for (size_t i = call.next++; i < call.count; i = call.next++) call.run(call.work, i, worker);
            lock.lock();
            // Nothing is left to hand out: the next call's turn. The last thread to leave wakes the
            // caller, which may destroy the call as soon as the lock is free.
            if (std::erase(calls, &call) > 0 && calls.empty()) handed_out.notify_all();
            if (--call.busy == 0) {
                call.done = true;
                call.finished.notify_one();
            }
        }

        void wait_turn() {
            std::unique_lock lock(mutex);
            handed_out.wait(lock, [&] { return stopping || calls.empty(); });
        }

        void serve(size_t worker) noexcept {
            std::unique_lock lock(mutex);
            for (;;) {
                wake.wait(lock, [&] { return stopping || !calls.empty(); });
                if (calls.empty()) return;
                work_on(*calls.front(), worker, lock);
            }
        }

        void stop() {
            {
                const std::lock_guard lock(mutex);
                stopping = true;
                if (joined) return;
                joined = true;
            }
            wake.notify_all();
            handed_out.notify_all();
            for (auto& thread : threads) thread.join();
        }
    };

    struct AllSignalsBlocked {
        sigset_t before;
        AllSignalsBlocked() {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    };

    static void pin(std::thread& thread, int cpu) {
        cpu_set_t set;
        CPU_ZERO(&set);
        const bool nameable = cpu >= 0 && cpu < CPU_SETSIZE;
        if (nameable) CPU_SET(cpu, &set);
        if (!nameable || pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) != 0) {
            throw std::invalid_argument("cpu " + std::to_string(cpu) + " is not there for this process");
        }
    }

    const pid_t pid_ = getpid();
    std::unique_ptr<State> state_;
};

// Calls work(i, thread) for every i below n, by so many threads at most, which end with it.
template <typename Work>
void by_threads(size_t n, size_t threads, Work&& work) {
    threads = std::min(threads, n);
    if (threads > 1) {
        try {
            Pool pool(threads);
            pool.parallel_for(n, work);
            return;
        } catch (const std::system_error&) {
            // No more threads are to be had.
        }
    }
    for (size_t i = 0; i < n; ++i) work(i, 0);
}

}  // namespace batchplant
