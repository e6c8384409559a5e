package fairness

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

const (
	// seatsPerCore and leastSeats make the default of --fairness-seats. Writing
	// requests wait for the disk and for webhooks most of their time, so there
	// are more seats than cores.
	seatsPerCore = 16
	leastSeats   = 32
	// coresPerFlowSeat makes the default of --fairness-seats-per-cluster: reading
	// and writing ones together have as many as there are cores.
	coresPerFlowSeat = 2
	// fewCores are so few that one flood, with its share of the seats, leaves none
	// to spare: then throttleOnFewCores has it use a third of its seats' time. Of more,
	// one that reads or writes leaves half, so that it need not be throttled.
	fewCores           = 3
	throttleOnFewCores = 2
)

// Options say how the server is shared among logical clusters.
type Options struct {
	// Enabled switches fairness on.
	Enabled bool
	// Limits are the bounds; numbers of seats of 0 are chosen by the number of
	// cores.
	Limits
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{Enabled: true, Limits: Limits{Waiting: 1000, FlowWaiting: 200, Paused: 1000, ThrottleFactor: throttleOn(cores())}}
}

// cores returns how many cores the process can use: of fewer than the machine has where it has
// a quota of processor time, and threads that run Go code may be more.
func cores() int {
	return min(runtime.GOMAXPROCS(0), runtime.NumCPU())
}

// throttleOn returns the ThrottleFactor on a machine with cores.
func throttleOn(cores int) float64 {
	if cores <= fewCores {
		return throttleOnFewCores
	}
	return 0
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-priority-and-fairness", o.Enabled, "share the server fairly among logical clusters; if false, only --max-requests-inflight and --max-mutating-requests-inflight bound them")
	fs.IntVar(&o.Seats, "fairness-seats", o.Seats, fmt.Sprintf("requests executed at a time, those of the installation's own components apart, of watches only their beginning; large lists count up to %d-fold. 0 means %d for each core, but at least %d", maxSeats, seatsPerCore, leastSeats))
	fs.IntVar(&o.FlowSeats, "fairness-seats-per-cluster", o.FlowSeats, "requests of one logical cluster executed at a time while others send requests too, reading and writing ones each; 0 means half as many as there are cores, but at least 1. Tenants whose webhooks are slow may need more")
	fs.IntVar(&o.Paused, "fairness-paused-requests", o.Paused, "requests that wait for webhooks, or for clients to read, at a time, whose seats are free meanwhile; of one logical cluster a fifth of them at most, and never all that are left. What there is no place for waits in the queue. 0 means any number")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	var errs []error
	if o.Seats < 0 || o.FlowSeats < 0 {
		errs = append(errs, fmt.Errorf("--fairness-seats %d and --fairness-seats-per-cluster %d must not be negative", o.Seats, o.FlowSeats))
	}
	if o.Paused < 0 {
		errs = append(errs, fmt.Errorf("--fairness-paused-requests %d must not be negative", o.Paused))
	}
	return errs
}

// New returns what the options ask for, or nil. registerer may be nil.
func (o *Options) New(registerer prometheus.Registerer) *Fairness {
	if !o.Enabled {
		return nil
	}
	limits := o.Limits
	if limits.Seats == 0 {
		limits.Seats = max(leastSeats, seatsPerCore*cores())
	}
	if limits.FlowSeats == 0 {
		limits.FlowSeats = max(1, cores()/coresPerFlowSeat)
	}
	if limits.AloneSeats == 0 {
		limits.AloneSeats = limits.Seats / 2
	}
	limits.FlowSeats, limits.AloneSeats = min(limits.FlowSeats, limits.Seats), min(limits.AloneSeats, limits.Seats)
	return New(limits, registerer)
}
