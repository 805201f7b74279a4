// SPDX-License-Identifier: BSD-3-Clause
// Explains errors by asking the group of all ranks.
#include "lockstep/comm/hierarchical/failures.h"

#include <optional>

#include <fmt/format.h>

#include "lockstep/comm/core/call.h"

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;

// How long the group of all ranks may look for the rank whose loss explains an error.
constexpr auto kExplanation = 1s;

// Returns the error of the group of all ranks as an error of this call; both number ranks alike.
ErrorDetails of_call(const ErrorContext& context, const Error& error) {
  ErrorDetails details = error.details();
  details.contexts = {context};
  return details;
}

template <class Failure>
[[noreturn]] void end_with(HierarchyLevels& levels, const Failure& failure) {
  end_groups(levels, short_message(failure));
  throw failure;
}

}  // namespace

// A rank that finds another of its groups ended asks the group of all for the reason.
void end_groups_if_calls_differ(HierarchyLevels& levels, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CallsDiffer& differ) {
    const int rank = levels.ranks_of_host()[static_cast<std::size_t>(levels.index)];
    const std::string reason =
        UsageError(describe_difference(fmt::format("rank {}", rank), differ.own(),
                                       fmt::format("rank {}", differ.peer()), differ.peers_call()))
            .what();
    levels.all->abort_for_mismatch(reason);
    end_groups(levels, reason);
  } catch (const std::exception&) {
    // The call that waits explains other errors.
  }
}

void explain(const std::exception_ptr& error, HierarchyLevels& levels, const ErrorContext& context,
             const Deadline& waited) {
  try {
    std::rethrow_exception(error);
  } catch (const CallsDiffer& differ) {
    throw CallsDiffer(context, differ.own(), differ.peer(), fmt::format("rank {}", differ.peer()),
                      differ.peers_call());
  } catch (const std::exception&) {
    // The group of all ranks may know more.
  }
  std::optional<TimeoutError> absent;
  try {
    levels.all->start({.call = {.collective = Collective::barrier}})
        .wait(waited.prolonged(kExplanation));
  } catch (const TimeoutError& late) {
    absent = TimeoutError(of_call(context, late));
  } catch (const PeerLost& lost) {
    end_with(levels, PeerLost(of_call(context, lost), lost.how()));
  } catch (const UsageError& mismatch) {
    end_with(levels, UsageError(of_call(context, mismatch)));
  } catch (const Error&) {
    // No rank died; the error itself says enough.
  }
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError& original) {
    if (absent) end_with(levels, *absent);
    end_with(levels, TimeoutError(within(context, original)));
  } catch (const UsageError& original) {
    end_with(levels, UsageError(within(context, original)));
  } catch (const PeerLost& original) {
    // A rank has ended the groups, usually because it waited for one that did not arrive.
    if (absent) end_with(levels, *absent);
    end_with(levels, BackendError(within(context, original)));
  } catch (const std::exception& original) {
    end_with(levels, BackendError(within(context, original)));
  }
}

}  // namespace lockstep::hierarchical
