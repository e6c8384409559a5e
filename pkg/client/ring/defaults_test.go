package ring

// What members have without configuration, as Config.complete sets it.
const (
	defaultRenewDeadline = defaultLeaseDuration / 5 * 3
	defaultRenewInterval = defaultLeaseDuration / 5
	defaultGracePeriod   = defaultLeaseDuration / 5
)
