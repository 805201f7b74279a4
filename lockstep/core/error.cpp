// SPDX-License-Identifier: BSD-3-Clause
// Makes the messages of errors from their parts.
#include "lockstep/core/error.h"

#include <ranges>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
  std::vector<std::string> inner;
  for (const ErrorContext& context : contexts | std::views::drop(1)) {
    if (!activity(context).empty()) inner.push_back(describe_inner(context, outer));
  }
  if (!inner.empty()) text += fmt::format(" ({})", fmt::join(inner, ", "));
  // "[Trainer] ", "[Trainer] rank 0 of 2: ", "[Trainer] epoch 1, rank 0 of 2: "
  const bool only_component = !outer.component.empty() && outer.operation.empty() && inner.empty();
  const std::string rank = rank_of(outer);
  if (rank.empty()) return text.empty() ? "" : text + (only_component ? " " : ": ");
  const char* separator = only_component ? " " : ", ";
  return fmt::format("{}{}{}: ", text, text.empty() ? "" : separator, rank);
}

std::string message(const ErrorDetails& details) {
  const char* separator = details.remedy.empty() ? "" : "; ";
  return describe(details.contexts) + details.cause + separator + details.remedy;
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

void Error::replace(ErrorDetails details) {
  std::runtime_error::operator=(std::runtime_error(message(details)));
  details_ = std::move(details);
}

std::exception_ptr Error::with(ErrorDetails details) const {
  return std::make_exception_ptr(Error(std::move(details)));
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

ErrorDetails within(const ErrorContext& context, const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  ErrorDetails details = own ? own->details() : ErrorDetails{.cause = first_line(error)};
  details.contexts.insert(details.contexts.begin(), context);
  return details;
}

std::string short_message(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  if (own == nullptr) return first_line(error);
  ErrorDetails details{.cause = own->details().cause};
  if (!own->details().contexts.empty()) {
    const ErrorContext& inner = own->details().contexts.back();
    details.contexts = {{.operation = inner.operation, .call = inner.call, .caller = inner.caller}};
  }
  return message(details);
}

void rethrow_within(const ErrorContext& context, const std::string& hint) {
  try {
    throw;
  } catch (const Error& error) {
    ErrorDetails details = within(context, error);
    std::string& end = details.remedy.empty() ? details.cause : details.remedy;
    end += hint;
    std::rethrow_exception(error.with(std::move(details)));
  }
}

}  // namespace lockstep
