// SPDX-License-Identifier: BSD-3-Clause
// Gloo's end of this process's connections.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lockstep {

// The broadcast address of loopback: a socket may listen there, but TCP connects nobody to it. It
// is also the highest address of loopback, and in Gloo the end with the higher one connects.
inline constexpr const char* kGlooHost = "127.255.255.255";

// Makes Gloo's device, which listens there: its real connections come from gloo_sockets.h. It has a
// thread that reads and writes, and that lets other threads finish what they do on its core.
std::shared_ptr<gloo::transport::Device> make_gloo_device();

}  // namespace lockstep
