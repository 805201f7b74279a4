// SPDX-License-Identifier: BSD-3-Clause
// Runs a function on rank 0 only, such as one that writes a file; all ranks learn how it ended.
#pragma once

#include <functional>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective, blocking. Returns on every rank the text that the function returns on rank 0. If it
// throws there, every rank throws an error with the same text, and of the same type as far as
// pack_error() keeps it. Otherwise the others would wait for a rank that has given up.
std::string text_of_rank_0(ProcessGroup& group, const std::function<std::string()>& function);

// The same for a function that returns nothing.
inline void on_rank_0(ProcessGroup& group, const std::function<void()>& function) {
  text_of_rank_0(group, [&] {
    function();
    return std::string();
  });
}

}  // namespace lockstep
