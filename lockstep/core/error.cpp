// SPDX-License-Identifier: BSD-3-Clause
// Makes the messages of errors from their parts.
#include "lockstep/core/error.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// "[gloo] all_reduce #42 of accuracy()"
std::string activity(const ErrorContext& context) {
  std::string text = context.component.empty() ? "" : fmt::format("[{}] ", context.component);
  text += context.operation;
  if (context.call >= 0) text += fmt::format(" #{}", context.call);
  if (!context.caller.empty()) text += fmt::format(" of {}", context.caller);
  if (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string rank_of(const ErrorContext& context) {
  return context.rank < 0 ? "" : fmt::format("rank {} of {}", context.rank, context.size);
}

// Within a group of a part of the ranks, such as a host's, this rank may have another number.
std::string describe_inner(const ErrorContext& inner, const ErrorContext& outer) {
  const bool same = inner.rank < 0 || (inner.rank == outer.rank && inner.size == outer.size);
  return same ? activity(inner) : fmt::format("{} as {}", activity(inner), rank_of(inner));
}

// "[reducer] reducing gradients ([gloo] all_reduce #42), rank 1 of 4: "
std::string describe(const std::vector<ErrorContext>& contexts) {
  if (contexts.empty()) return "";
  const ErrorContext& outer = contexts.front();
  std::string text = activity(outer);
  for (std::size_t i = 1; i < contexts.size(); ++i) {
    text += fmt::format("{}{}", i == 1 ? " (" : ", ", describe_inner(contexts[i], outer));
  }
  if (contexts.size() > 1) text += ')';
  const std::string rank = rank_of(outer);
  if (!rank.empty()) {
    // "[Trainer] rank 0 of 2", but "[Trainer] epoch 1, rank 0 of 2"
    const bool separate =
        !outer.operation.empty() || contexts.size() > 1 || outer.component.empty();
    text += fmt::format("{}{}", text.empty() ? "" : (separate ? ", " : " "), rank);
  }
  return text.empty() ? "" : text + ": ";
}

std::string message(const ErrorDetails& details) {
  const char* separator = details.remedy.empty() ? "" : "; ";
  return describe(details.contexts) + details.cause + separator + details.remedy;
}

ErrorDetails within(const Error& error, const ErrorContext& context, const std::string& hint) {
  ErrorDetails details = error.details();
  details.contexts.insert(details.contexts.begin(), context);
  if (!hint.empty()) details.remedy += (details.remedy.empty() ? "" : "; ") + hint;
  return details;
}

}  // namespace

std::string ErrorContext::prefix() const {
  return describe({*this});
}

Error::Error(const std::string& cause) : Error(ErrorDetails{.cause = cause}) {}

Error::Error(ErrorContext context, const std::string& cause, const std::string& remedy)
    : Error(ErrorDetails{.cause = cause, .remedy = remedy, .contexts = {std::move(context)}}) {}

Error::Error(ErrorDetails details)
    : std::runtime_error(message(details)), details_(std::move(details)) {}

void rethrow_within(const ErrorContext& context, const std::string& hint) {
  try {
    throw;
  } catch (const PeerLost& error) {
    throw PeerLost(within(error, context, hint), error.how());
  } catch (const TimeoutError& error) {
    throw TimeoutError(within(error, context, hint));
  } catch (const UsageError& error) {
    throw UsageError(within(error, context, hint));
  } catch (const BackendError& error) {
    throw BackendError(within(error, context, hint));
  }
}

}  // namespace lockstep
