// SPDX-License-Identifier: BSD-3-Clause
// The list of recipes.
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

std::vector<Recipe> all_recipes() {
  return {linear_recipe(), mlp_recipe(), cnn_recipe(), resnet18_recipe(),
          char_transformer_recipe()};
}

Recipe find_recipe(const std::string& name) {
  std::string names;
  for (auto& recipe : all_recipes()) {
    if (recipe.name == name) return recipe;
    names += (names.empty() ? "" : ", ") + recipe.name;
  }
  throw UsageError(fmt::format("there is no recipe \"{}\"; choose one of {}", name, names));
}

}  // namespace lockstep
