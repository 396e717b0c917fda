// Streams of the test accelerator: each is a queue of work and a thread that does it, when the schedule lets it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

#include "races.h"

namespace accelerator {

constexpr c10::DeviceIndex kDevices = 2;
constexpr int kStreams = 33; // the default one, and as many as CUDA has in a pool
static_assert(kQueues == kDevices * kStreams);

using Work = std::function<void()>;

// When streams do what they are asked.
enum class Pace {
  eager, // at once
  delayed, // after a random pause, at times
  lazy, // once somebody waits for it
  mixed, // each stream draws one of these
};

void set_schedule(Pace pace, uint64_t seed);

class Queue {
 public:
  // Returns the place of the work: how much the queue has been given so far. `uses`: the memory that it uses.
  uint64_t submit(Work work, const std::string& what = {}, const Uses& uses = {});

  // Whether all work up to `place` is done. A program that asks again and again is told so in the end.
  bool reached(uint64_t place);

  // Blocks until then.
  void wait(uint64_t place);

  // Blocks until all is done that it was given so far, for the host to know.
  void finish();

  // Whether that is so.
  bool is_idle();

  // How much of each queue is over once this one has come here.
  Clock clock() const;

  // What it is given from now on runs after that, as somebody made sure.
  void follows(const Clock& clock) const;

  void set_pace(Pace pace, uint64_t seed);

 private:
  void run();
  void demand(uint64_t place);
  uint64_t end();
  int number() const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::deque<Work> work_;
  uint64_t given_ = 0;
  uint64_t done_ = 0;
  uint64_t demanded_ = 0;
  Pace pace_ = Pace::eager;
  std::mt19937_64 random_;
  bool is_running_ = false;
};

// A place in a queue, and when it was reached.
struct Event {
  Queue* queue = nullptr;
  uint64_t place = 0;
  std::shared_ptr<std::atomic<int64_t>> reached_ns;
  std::shared_ptr<const Clock> clock;

  void record(Queue& on);
  void block(Queue& waiting) const;
  bool reached() const;
  bool is_over() const; // the same, unknown to the program
  void wait() const;
};

Queue& queue_of(const c10::Stream& stream);
Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream);

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(const c10::Stream& stream);
c10::Stream new_stream(c10::DeviceIndex device);
Queue& current_queue();

void synchronize(c10::DeviceIndex device);

// What went wrong on a stream is raised where the host next waits, as CUDA does.
void fail(const std::string& what);
void raise_failure();

} // namespace accelerator
