// SPDX-License-Identifier: BSD-3-Clause
// Runs ranks on threads, and throws their first exception.
#include "tests/support/thread_group.h"

#include <exception>
#include <thread>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {

void run_rank_threads(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& function,
                      ThreadGroupOptions options) {
  auto groups = make_thread_groups(size, {.timeout = options.timeout});
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank, group = std::move(groups[rank])]() mutable {
      try {
        function(std::move(group));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep::testing
