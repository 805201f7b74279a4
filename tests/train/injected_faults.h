// SPDX-License-Identifier: BSD-3-Clause
// What elastic_program does to itself and to its surroundings.
#pragma once

#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::testing {

// "kill", "segv", "exit" and "memory", which takes all that there is, end this process, and
// "kill_after_N" does so N microseconds later. "throw" throws a std::runtime_error. "stop" stops
// the process; "hang" waits for ever, and "deaf", which ignores SIGINT and SIGTERM, too.
// std::invalid_argument for anything else.
void inject_fault(const std::string& how);

// Flips the sign of an element of a float tensor. A low bit's effect may be rounded away in the
// steps that follow.
void flip_bit(const at::Tensor& values);

// Writes a file of this process's own into the folder until its disk is full.
void fill_disk(const std::filesystem::path& folder);
// Removes these files of all processes.
void empty_disk(const std::filesystem::path& folder);

// Waits for at most a minute; std::runtime_error if it does not come.
void wait_for_file(const std::filesystem::path& path);

// Appends a line at once; lines of several processes do not mix.
void append_line(const std::filesystem::path& path, const std::string& line);

}  // namespace lockstep::testing
