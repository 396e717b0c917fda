// Finds what no wait puts in order: two uses of the same bytes, one of which writes them, where the second may run before
// the first has ended. It goes by what streams were told to wait for, and by what the host knows to be over; so a race is
// found also where the schedule of this run has it end well.
//
// What is overwritten while it is copied to the host is a race only if somebody reads that copy: it may be worth nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace accelerator {

constexpr int kQueues = 66; // of all devices

// How much of each queue is over before what comes next in some queue, or to the host.
using Clock = std::array<uint64_t, kQueues>;

struct Use {
  const void* begin;
  size_t nbytes;
  bool writes;
};

using Uses = std::vector<Use>;

constexpr auto kToHost = "copy to the host";

// From now on races are looked for, or not. What was found is forgotten.
void watch_races(bool watches);

// What was found since this was last asked, a line each.
std::vector<std::string> take_races();

// -- told by queues ---------------------------------------------------------------------------------------------------

// The queue was given the work of that place, which uses memory.
void was_given(int queue, uint64_t place, const std::string& what, const Uses& uses);

// How much is over once the queue has come to where it ends now.
Clock clock_of(int queue);

// What the queue is given from now on runs after that; or whatever the host asks for, if there is none.
void comes_after(int queue, const Clock& clock);
constexpr int kHost = -1;

} // namespace accelerator
