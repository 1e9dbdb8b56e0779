// The same objects as those of require, so that instanceof holds.
import qsidecar from './index.js'

export const {
  Client,
  Worker,
  Retry,
  Snooze,
  Dead,
  QsidecarError,
  NotConnected,
  Closed,
  SettledOrLost,
  SidecarError,
  BadFrame,
  BadRequest,
  TooLarge,
  UnknownOp,
  UnknownQueue,
  Forbidden,
  Unsupported,
  LeaseLost,
  Busy,
  Draining,
  Unavailable,
  UnknownOutcome,
  Internal,
  testing,
} = qsidecar
