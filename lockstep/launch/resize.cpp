// SPDX-License-Identifier: BSD-3-Clause
// Finds the store of a job's launcher, by the process that serves it or by what it holds, and asks.
#include "lockstep/launch/resize.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/core/number.h"
#include "lockstep/core/packing.h"
#include "lockstep/launch/elastic_members.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/local_store_server.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// Begins the keys of requests, each of which ends with a token of its own.
constexpr const char* kResizeRequests = "lockstep/resize/";
// A launcher answers in the next round of its event loop.
constexpr milliseconds kResizeTimeout{10'000};
// Other jobs' launchers may be stopped.
constexpr milliseconds kSearchTimeout{1000};

constexpr const char* kNameTheJob =
    "give the pid of its `lockstep run`, or of the program that called spawn, or the "
    "TORCHELASTIC_RUN_ID of its ranks";

[[noreturn]] void refuse_resize(const std::string& job, const std::string& cause,
                                const std::string& remedy) {
  throw UsageError(ErrorContext{}, fmt::format("job {}: {}", job, cause), remedy);
}

bool is_elastic(const std::string& folder) {
  return ::access(fmt::format("{}/{}", folder, kBoardName).c_str(), F_OK) == 0;
}

// A variable of the environment with which the process was started.
std::optional<std::string> variable_of(pid_t pid, const std::string& name) {
  std::ifstream environment(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// The folders of this user's launchers, with the socket and, in an elastic job, the board.
std::vector<std::string> launchers_in(const std::optional<std::string>& tmpdir) {
  std::vector<std::string> found;
  if (tmpdir) found = LocalStoreServer::folders_in(*tmpdir);
  if (tmpdir == "/tmp") return found;
  // Where a launcher goes if TMPDIR is unset or too long.
  for (std::string& folder : LocalStoreServer::folders_in("/tmp")) {
    found.push_back(std::move(folder));
  }
  return found;
}

// Whether the process listens on the folder's socket.
bool serves(pid_t pid, const std::string& folder) {
  try {
    const UniqueFd connection =
        connect_unix(LocalStoreServer::socket_in(folder), Deadline::after(kSearchTimeout));
    return peer_of(connection.get()).pid == pid;
  } catch (const Error&) {
    return false;  // a folder that a killed launcher has left
  }
}

void require_own_process(const std::string& job, pid_t pid) {
  struct stat process {};
  if (::kill(pid, 0) != 0 && errno == ESRCH) {
    refuse_resize(job, fmt::format("there is no process {} on this machine", pid), kNameTheJob);
  }
  if (::stat(fmt::format("/proc/{}", pid).c_str(), &process) != 0) return;
  if (process.st_uid == ::geteuid()) return;
  refuse_resize(job,
                fmt::format("process {} belongs to user {}, and this one to user {}", pid,
                            process.st_uid, ::geteuid()),
                "run this as the job's user");
}

std::string folder_of_process(const std::string& job, pid_t pid) {
  require_own_process(job, pid);
  for (const std::string& folder : launchers_in(variable_of(pid, "TMPDIR"))) {
    if (serves(pid, folder)) return folder;
  }
  refuse_resize(job, fmt::format("process {} has no ranks of a job", pid), kNameTheJob);
}

std::optional<std::string> folder_of_run(const std::string& id) {
  for (const std::string& folder : launchers_in(environment("TMPDIR"))) {
    // The id of a run without restarts.
    if (std::filesystem::path(folder).filename() == id) return folder;
    if (!is_elastic(folder)) continue;
    try {
      LocalStore store(LocalStoreServer::socket_in(folder));
      if (store.get(kRunIdKey, Deadline::after(kSearchTimeout)) == id) return folder;
    } catch (const Error&) {
      // Its launcher has ended, or is stopped.
    }
  }
  return std::nullopt;
}

// An id may look like a pid: one that a batch system has given.
std::string find_folder(const std::string& job) {
  constexpr Range<int> kPids{1, std::numeric_limits<int>::max()};
  const auto run = folder_of_run(job);
  const auto pid = parse_number(job, kPids);
  if (!run && !pid) {
    refuse_resize(job, "this user has no elastic job of this name here", kNameTheJob);
  }
  const std::string folder = run ? *run : folder_of_process(job, *pid);
  if (!is_elastic(folder)) {
    refuse_resize(job, "it is not elastic", "start it with --elastic MIN:MAX");
  }
  return folder;
}

std::string answer_key(std::string_view token) {
  return fmt::format("lockstep/resized/{}", token);
}

}  // namespace

ResizeAnswer answer_to_resize(const ResizableJob& job, int ranks) {
  if (ranks < job.least || ranks > job.most) {
    return {false, fmt::format("{} is outside of --elastic {}:{}; give a number from {} to {}",
                               ranks, job.least, job.most, job.least, job.most)};
  }
  if (job.finished) {
    return {false, "its training has ended, or is about to, so that no rank may leave or join"};
  }
  if (ranks == job.ranks) {
    return {true, job.misses_ranks ? "those that are missing are started"
                                   : "it is to have so many ranks already"};
  }
  return {true,
          fmt::format("{} instead of {}: {} at the end of a step", ranks_in_words(ranks), job.ranks,
                      ranks > job.ranks ? "newcomers join" : "the highest ranks leave")};
}

void answer_resize_requests(LocalStoreServer& store,
                            const std::function<ResizeAnswer(int ranks)>& decide) {
  for (const auto& [key, request] : store.take(kResizeRequests)) {
    try {
      int ranks = 0;
      unpack(request, ranks);
      const ResizeAnswer answer = decide(ranks);
      const std::string token = key.substr(std::string_view(kResizeRequests).size());
      store.set(answer_key(token), pack(answer.follows, answer.text));
    } catch (const Error&) {
      // Not from a `lockstep resize` of this version, or there is no room for the answer.
    }
  }
}

std::string ask_to_resize(const std::string& job, int ranks) {
  const std::string path = LocalStoreServer::socket_in(find_folder(job));
  LocalStore store(path, {.patience = kResizeTimeout});
  const std::string token = make_token();
  ResizeAnswer answer;
  try {
    store.set(kResizeRequests + token, pack(ranks));
    unpack(store.get(answer_key(token), Deadline::after(kResizeTimeout)), answer.follows,
           answer.text);
  } catch (const TimeoutError&) {
    throw TimeoutError(ErrorContext{},
                       fmt::format("job {}: its launcher did not answer within {} s", job,
                                   kResizeTimeout / std::chrono::seconds(1)),
                       "check whether it is stopped, and ask again");
  } catch (const BackendError&) {
    throw BackendError(ErrorContext{}, fmt::format("job {}: its launcher has ended meanwhile", job),
                       "start the job again");
  }
  if (!answer.follows) throw UsageError(fmt::format("job {}: {}", job, answer.text));
  return answer.text;
}

}  // namespace lockstep
