package connections

import (
	"errors"

	"github.com/spf13/pflag"
)

// Limits bound the connections of a server; 0 bounds nothing.
type Limits struct {
	// Anonymous is how many there are on which nobody has authenticated.
	Anonymous int
	// User is how many there are of one payer, see identity.Payer.
	User int
}

// NewLimits returns the defaults.
func NewLimits() Limits {
	const anonymous, user = 4000, 1000
	return Limits{Anonymous: anonymous, User: user}
}

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&l.Anonymous, "max-anonymous-connections", l.Anonymous, "connections on which nobody has authenticated yet; for one more, another one is closed, the oldest of the address that has most of them. 0 means any number")
	fs.IntVar(&l.User, "max-connections-per-user", l.User, "connections of one user; the service accounts of a logical cluster count as one user, and the installation's own components are not counted. Requests on more are answered with 429, and their connections close. 0 means any number")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	if l.Anonymous < 0 || l.User < 0 {
		return []error{errors.New("--max-anonymous-connections and --max-connections-per-user must not be negative")}
	}
	return nil
}
