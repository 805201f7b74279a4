// SPDX-License-Identifier: BSD-3-Clause
// Rethrows Lockstep's errors with text around their messages.
#include "lockstep/core/rethrow.h"

#include "lockstep/core/error.h"

namespace lockstep {

void rethrow_with(const std::string& before, const std::string& after) {
  try {
    throw;
  } catch (const PeerLost& error) {
    throw PeerLost(error.rank(), before + error.what() + after, error.how());
  } catch (const TimeoutError& error) {
    throw TimeoutError(before + error.what() + after, error.rank());
  } catch (const UsageError& error) {
    throw UsageError(before + error.what() + after);
  } catch (const BackendError& error) {
    throw BackendError(before + error.what() + after);
  }
}

}  // namespace lockstep
