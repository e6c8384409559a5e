package ring

// The defaults of Config.complete.
const (
	defaultRenewDeadline = defaultLeaseDuration / 5 * 3
	defaultRenewInterval = defaultLeaseDuration / 5
	defaultGracePeriod   = defaultLeaseDuration / 5
)
