package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

const (
	// slots are as many hashes as the members of a ring work on: one in each of its slots.
	slots = 256
	// workInterval is how often each hash is worked on, and how exactly it is known for how
	// long nobody did.
	workInterval = time.Millisecond
	// lookInterval is how often a state is looked for.
	lookInterval = 10 * time.Millisecond
)

var errCrashed = errors.New("this member has crashed")

// drill is a ring of which each member works on all hashes that it may work on.
type drill struct {
	shard  Target
	config ring.Config

	mu    sync.Mutex
	by    [slots]*ringMember
	ended [slots]time.Time
	// working are hashes that somebody works on, twice counts beginnings on these.
	working [slots]bool
	twice   int
	// moved counts hashes that another one works on than before, and idle is for how long they
	// had nobody.
	moved int
	idle  []time.Duration
	wg    sync.WaitGroup
}

// newDrill returns a ring without members, whose members have this configuration.
func newDrill(shard Target, config ring.Config) *drill {
	return &drill{shard: shard, config: config}
}

// ringMember is a member in this process, with connections of its own.
type ringMember struct {
	*ring.Ring

	weight  int
	writes  atomic.Int64
	crashed chan struct{}
	leave   context.CancelFunc
	gone    chan struct{}
	err     error
}

// counted counts writes, until the member crashes: nothing reaches the server from then on.
type counted struct {
	http.RoundTripper

	of *ringMember
}

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.of.over() {
		return nil, errCrashed
	}
	if r.Method != http.MethodGet {
		c.of.writes.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

func (m *ringMember) over() bool {
	select {
	case <-m.crashed:
		return true
	default:
		return false
	}
}

// crash ends work and requests at once, without a word to others.
func (m *ringMember) crash() { close(m.crashed) }

// join starts a member. It works if the drill is to measure that.
func (d *drill) join(ctx context.Context, weight int, works bool) (*ringMember, error) {
	m := &ringMember{weight: weight, crashed: make(chan struct{}), gone: make(chan struct{})}
	server := d.shard.rest()
	server.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counted{rt, m} })
	factory, err := client.NewFactory(server)
	if err != nil {
		return nil, err
	}
	c := d.config
	c.ID, c.Key, c.Weight = "bench", client.ByCluster, weight
	c.Leases, c.Namespace = factory.Cluster(logicalcluster.NewPath("root")), namespace
	if m.Ring, err = ring.New(c); err != nil {
		return nil, err
	}
	ctx, m.leave = context.WithCancel(ctx)
	d.wg.Go(func() {
		defer close(m.gone)
		defer factory.CloseIdleConnections()
		if err := m.Run(ctx); !m.over() {
			m.err = err
		}
	})
	if works {
		d.wg.Go(func() { d.work(m) })
	}
	return m, nil
}

// joins starts members of these weights.
func (d *drill) joins(ctx context.Context, works bool, weights ...int) ([]*ringMember, error) {
	var members []*ringMember
	for _, weight := range weights {
		m, err := d.join(ctx, weight, works)
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// work works on all hashes that the member may work on, until it has left or crashed.
func (d *drill) work(m *ringMember) {
	ticker := time.NewTicker(workInterval)
	defer ticker.Stop()
	for {
		for slot := range slots {
			if m.over() {
				return
			}
			if _, end, ok := m.Begin(context.Background(), uint64(slot)<<56); ok { //nolint:gosec // 0 to 255
				d.begin(m, slot)
				d.end(slot)
				end()
			}
		}
		select {
		case <-m.gone:
			return
		case <-m.crashed:
			return
		case <-ticker.C:
		}
	}
}

func (d *drill) begin(m *ringMember, slot int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.working[slot] {
		d.twice++
	}
	if former := d.by[slot]; former != nil && former != m {
		d.moved++
		d.idle = append(d.idle, time.Since(d.ended[slot]))
	}
	d.working[slot], d.by[slot] = true, m
}

func (d *drill) end(slot int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.working[slot], d.ended[slot] = false, time.Now()
}

// taken returns what has been measured since the last call.
func (d *drill) taken() (moved int, idle []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	moved, idle = d.moved, d.idle
	d.moved, d.idle = 0, nil
	return moved, idle
}

// stable waits until these members have all hashes and none moves, and returns by how many
// slots the worst differs from its part by weight.
func (d *drill) stable(ctx context.Context, members []*ringMember) (deviation float64, err error) {
	waits := "nothing"
	err = until(ctx, func() bool {
		weights, shares := 0, map[string]float64{}
		for _, m := range members {
			s := m.Status()
			if waits = s.Waits; waits != "" || len(s.Members) != len(members) {
				return false
			}
			weights += m.weight
			shares[s.ID] = shareOf(s)
		}
		deviation = 0
		for _, m := range members {
			part := slots * float64(m.weight) / float64(weights)
			deviation = max(deviation, math.Abs(shares[m.Status().ID]*slots-part))
		}
		return deviation <= 2
	})
	if err != nil {
		return 0, fmt.Errorf("%d members have not divided the ring: %s: %w", len(members), waits, err)
	}
	return deviation, nil
}

// shareOf returns the part of all hashes that the member with this status has.
func shareOf(s ring.Status) float64 {
	n := slices.IndexFunc(s.Members, func(m ring.Member) bool { return m.ID == s.ID })
	if n < 0 {
		return 0
	}
	return s.Members[n].Share
}

// covered waits until each hash has been worked on from now on.
func (d *drill) covered(ctx context.Context) error {
	since := time.Now()
	err := until(ctx, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !slices.ContainsFunc(d.ended[:], func(t time.Time) bool { return t.Before(since) })
	})
	if err != nil {
		return fmt.Errorf("not each hash is worked on: %w", err)
	}
	return nil
}

// stop has all members leave, and says what they have failed with.
func (d *drill) stop(members []*ringMember) error {
	for _, m := range members {
		m.leave()
	}
	d.wg.Wait()
	var errs []error
	for _, m := range members {
		errs = append(errs, m.err)
	}
	if d.twice > 0 {
		errs = append(errs, fmt.Errorf("%d times work began on a hash that another member worked on", d.twice))
	}
	return errors.Join(errs...)
}

// until waits until the condition is true.
func until(ctx context.Context, condition func() bool) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}
