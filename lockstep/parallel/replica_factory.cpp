// SPDX-License-Identifier: BSD-3-Clause
// Tries the function of the user, clone() and the default constructor, and checks what they make.
#include "lockstep/parallel/replica_factory.h"

#include <sstream>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/kept_state.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {
namespace {

using torch::nn::Module;
using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// Describes how the replica's parameters or buffers differ; empty if they do not.
std::string difference(const char* kind, const NamedTensors& originals,
                       const NamedTensors& replicas) {
  for (const auto& item : originals) {
    const at::Tensor* replica = replicas.find(item.key());
    if (!replica) return fmt::format("it has no {} {}", kind, item.key());
    if (sizes_in_words(*replica) != sizes_in_words(item.value())) {
      return fmt::format("its {} {} is {} instead of {}", kind, item.key(),
                         sizes_in_words(*replica), sizes_in_words(item.value()));
    }
  }
  for (const auto& item : replicas) {
    if (!originals.find(item.key())) {
      return fmt::format("it has the additional {} {}", kind, item.key());
    }
  }
  return {};
}

// The submodules must be the same in the same order, since their modes are copied by position. A
// clone has null for a submodule whose clone() belongs to a base class.
std::string difference_of_submodules(const Module& original, const Module& replica) {
  const auto originals = original.named_children();
  const auto replicas = replica.named_children();
  if (originals.keys() != replicas.keys()) return "it has other submodules";
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const std::string& name = originals[i].key();
    if (!replicas[i].value()) return fmt::format("it lacks submodule {}", name);
    const std::string inner = difference_of_submodules(*originals[i].value(), *replicas[i].value());
    if (!inner.empty()) return fmt::format("in submodule {}: {}", name, inner);
  }
  return {};
}

std::string difference(const Module& original, const Module& replica) {
  std::string found = difference_of_submodules(original, replica);
  if (found.empty()) {
    found = difference("parameter", original.named_parameters(), replica.named_parameters());
  }
  if (found.empty())
    found = difference("buffer", original.named_buffers(), replica.named_buffers());
  return found;
}

bool same_types(const Module& original, const Module& replica) {
  if (typeid(original) != typeid(replica)) return false;
  const auto originals = original.children();
  const auto replicas = replica.children();
  for (std::size_t i = 0; i < originals.size(); ++i) {
    if (!same_types(*originals[i], *replicas[i])) return false;
  }
  return true;
}

std::string printed(const Module& module) {
  std::ostringstream text;
  text << module;
  return text.str();
}

// The check for a module that its user vouches for: its layers may print differently.
std::string difference_of_users(const Module& original, const Module& replica) {
  if (typeid(original) != typeid(replica)) return "it is of another type";
  return difference(original, replica);
}

// The check for a module that nobody vouches for.
std::string difference_of_all(const Module& original, const Module& replica) {
  std::string found = difference(original, replica);
  if (!found.empty()) return found;
  if (!same_types(original, replica)) return "it, or a submodule, is of another type";
  if (printed(original) != printed(replica)) {
    return "it prints differently, so its layers have other options";
  }
  return {};
}

bool has_clone(const Module& module) {
  try {
    return module.clone() != nullptr;
  } catch (const std::exception&) {
    return false;
  }
}

// Finds a submodule that Cloneable::clone() silently skips because it has no clone(). Tries one
// instance of each type: cloning every submodule would copy the leaves once per level.
std::string submodule_without_clone(const Module& original) {
  std::unordered_set<std::type_index> asked{typeid(original)};
  for (const auto& item : original.named_modules(std::string(), /*include_self=*/false)) {
    const Module& submodule = *item.value();
    if (!asked.insert(typeid(submodule)).second || has_clone(submodule)) continue;
    return fmt::format("it copies nothing of submodule {}, a {}, which has no clone()", item.key(),
                       submodule.name());
  }
  return {};
}

struct Attempt {
  std::shared_ptr<Module> replica;
  std::string lack;  // empty if the replica is suitable
};

Attempt by_clone(const Module& original, bool trust_constructors) try {
  Attempt attempt{original.clone(), {}};
  attempt.lack = difference_of_all(original, *attempt.replica);
  if (attempt.lack.empty() && !trust_constructors) attempt.lack = submodule_without_clone(original);
  return attempt;
} catch (const std::exception& error) {
  return {nullptr, first_line(error)};
}

Attempt by_default_constructor(const Module& original, const ReplicaSources& sources) try {
  if (!sources.by_default) return {nullptr, "there is none"};
  Attempt attempt{sources.by_default(), {}};
  attempt.lack = difference_of_all(original, *attempt.replica);
  if (attempt.lack.empty() && !sources.trust_constructors) {
    attempt.lack = "members that are not registered may have other values";
  }
  return attempt;
} catch (const std::exception& error) {
  return {nullptr, first_line(error)};
}

}  // namespace

std::shared_ptr<Module> make_replica(const Module& original, const ReplicaSources& sources) {
  // Constructors fill parameters with random numbers. The program's own must not change: otherwise
  // it would start from different weights than without replicas.
  const KeptRandomNumbers kept;
  if (sources.make_replica) {
    const auto replica = sources.make_replica();  // its exceptions are the user's own
    const std::string lack = replica ? difference_of_users(original, *replica) : "it is null";
    if (lack.empty()) return replica;
    throw UsageError(fmt::format("[{}] make_replica did not make a module like the wrapped one: {}",
                                 sources.owner, lack));
  }
  const Attempt clone = by_clone(original, sources.trust_constructors);
  if (clone.lack.empty()) return clone.replica;
  const Attempt constructed = by_default_constructor(original, sources);
  if (constructed.lack.empty()) return constructed.replica;
  throw UsageError(fmt::format(
      "[{}] cannot make a replica of {}. By its clone(): {}. By its default constructor: "
      "{}. Derive your modules from torch::nn::Cloneable; or pass a function that makes one: "
      "{{.make_replica = [=] {{ return std::make_shared<NetImpl>(options); }}}}; or, if "
      "constructors give all members the values that they have here, say so: "
      "{{.trust_constructors = true}}",
      sources.owner, original.name(), clone.lack, constructed.lack));
}

}  // namespace lockstep
