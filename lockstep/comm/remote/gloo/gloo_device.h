// SPDX-License-Identifier: BSD-3-Clause
// Gloo's device, its end of this process's connections.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lockstep {

// The broadcast address of loopback. A socket may listen there, but TCP cannot connect to it. It is
// also the highest address of loopback, and in Gloo the end with the higher address connects.
inline constexpr const char* kGlooHost = "127.255.255.255";

// Makes Gloo's device, which listens at kGlooHost; its real connections come from gloo_sockets.h.
// The device has a thread that reads and writes, and lets other threads on its core finish what
// they are doing.
std::shared_ptr<gloo::transport::Device> make_gloo_device();

}  // namespace lockstep
