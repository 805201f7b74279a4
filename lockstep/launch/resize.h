// SPDX-License-Identifier: BSD-3-Clause
// `lockstep resize`: asks the launcher of an elastic job for another number of ranks. A request and
// its answer are keys in the launcher's store, which only its user can reach.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The key under which the launcher of an elastic job tells its run's id.
inline constexpr const char* kRunIdKey = "lockstep/run_id";
// Begins the keys of requests that the launcher has not taken yet.
inline constexpr const char* kResizeRequests = "lockstep/resize/";

struct ResizeRequest {
  // Distinguishes it from others.
  std::string token{};
  int ranks = 0;
};

std::string encode_resize(const ResizeRequest& request);
// BackendError if the bytes are no request.
ResizeRequest decode_resize(std::string_view bytes);

// The keys of the request with this token and of its answer.
std::string resize_request_key(const std::string& token);
std::string resize_answer_key(const std::string& token);
// Whether the request is followed, and what its user is told.
std::string encode_resize_answer(bool follows, const std::string& text);

// Asks the job's launcher on this machine, and returns its answer: "4 ranks instead of 2: newcomers
// join at the end of a step". `job`: the pid of the launcher, or the run's id, which its ranks have
// in TORCHELASTIC_RUN_ID. The job follows later. UsageError if there is no such job, if it belongs
// to another user or is not elastic, and if the launcher refuses. TimeoutError if it does not
// answer within ten seconds.
std::string ask_to_resize(const std::string& job, int ranks);

}  // namespace lockstep
