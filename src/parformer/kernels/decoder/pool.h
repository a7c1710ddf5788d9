// Threads that share one step, and wait politely.
//
// Work is cut into pieces that whoever is free takes, so a thread that the system keeps waiting
// holds nobody up but for the piece in its hands. Helpers spin for some microseconds between two
// pieces of work, since the next one is there at once, and then sleep. Where others need the
// cores, the time lost in waiting for helpers says so, and the next steps go without them.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

class Pool {
 public:
  using Piece = void (*)(const void* work, int64_t piece, int64_t thread);

  explicit Pool(int64_t threads) {
    for (int64_t n = 1; n < threads; n++) helpers.emplace_back([this, n] { help(n); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(door);
      over.store(true);
    }
    wake.notify_all();
    for (auto& helper : helpers) helper.join();
  }

  int64_t threads() const { return int64_t(helpers.size()) + 1; }

  bool alone() const { return helpers.empty() || resting > 0; }

  // Once before every step: how much of the last one was spent on waiting?
  void begin_step() {
    const double now = seconds();
    if (resting > 0) {
      resting--;
    } else if (!helpers.empty()) {
      const double took = now - began;
      slow = waited > 0.25 * took && took < 1 ? slow + 1 : 0;
      if (slow >= 3) {
        resting = rest = rest < 1024 ? rest * 2 : 1024;
        slow = 0;
      } else if (++fine > 256) {
        rest = 16;
        fine = 0;
      }
    }
    began = now;
    waited = 0;
  }

  template <typename Work>
  void run(int64_t pieces, const Work& work) {
    const auto call = [](const void* own, int64_t piece, int64_t thread) {
      (*static_cast<const Work*>(own))(piece, thread);
    };
    if (alone() || pieces < 2) {
      for (int64_t piece = 0; piece < pieces; piece++) work(piece, 0);
      return;
    }
    task = call;
    own_work = &work;
    count.store(pieces, std::memory_order_relaxed);
    unfinished.store(pieces, std::memory_order_relaxed);
    // the upper half tells one piece of work from the next, the lower counts pieces taken
    const uint64_t turn = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
    ticket.store(turn << 32, std::memory_order_seq_cst);  // before it looks who sleeps
    if (sleeping.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> hold(door);
      wake.notify_all();
    }
    take_pieces(turn, 0);
    if (unfinished.load(std::memory_order_acquire) == 0) return;
    const double since = seconds();
    for (int64_t turns = 0; unfinished.load(std::memory_order_acquire) > 0; turns++) {
      pause();
      if (turns > 2000) std::this_thread::yield();
    }
    const double lost = seconds() - since;
    if (lost > 20e-6) waited += lost;
  }

 private:
  static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }

  void take_pieces(uint64_t turn, int64_t thread) {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while (seen >> 32 == turn && int64_t(seen & 0xffffffff) < count.load(std::memory_order_relaxed)) {
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
      task(own_work, int64_t(seen & 0xffffffff), thread);
      unfinished.fetch_sub(1, std::memory_order_acq_rel);
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void help(int64_t thread) {
    uint64_t done = 0;
    while (!over.load(std::memory_order_acquire)) {
      uint64_t turn = ticket.load(std::memory_order_acquire) >> 32;
      for (int64_t turns = 0; turn == done && turns < SPINS; turns++) {
        pause();
        turn = ticket.load(std::memory_order_acquire) >> 32;
      }
      if (turn == done) {
        std::unique_lock<std::mutex> hold(door);
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(hold, [&] {
          return over.load() || ticket.load(std::memory_order_seq_cst) >> 32 != done;
        });
        sleeping.fetch_sub(1, std::memory_order_seq_cst);
        continue;
      }
      take_pieces(turn, thread);
      done = turn;
    }
  }

  static constexpr int64_t SPINS = 3000;  // some 50 microseconds

  std::vector<std::thread> helpers;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> unfinished{0}, sleeping{0}, count{0};
  std::atomic<bool> over{false};
  std::mutex door;
  std::condition_variable wake;
  Piece task = nullptr;
  const void* own_work = nullptr;
  double began = 0, waited = 0;
  int64_t slow = 0, fine = 0, resting = 0, rest = 8;
};
