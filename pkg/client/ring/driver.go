package ring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

type driver struct {
	*Ring

	leases    *client.Informer[*coordinationv1.Lease]
	synced    <-chan struct{}
	responses chan func()
	pending   bool
	running   *sync.WaitGroup
}

func (d *driver) loop(ctx, working context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := ctx.Done()
	for {
		loading := d.checkLoaded()
		wait, err := d.step(working)
		if err != nil || wait < 0 {
			return err
		}
		timer.Reset(min(wait, loading))
		select {
		case <-ended:
			ended = nil
			d.locked(func() { d.machine.drain(d.now()) })
		case <-d.wake:
		case <-d.gate.idle:
		case <-timer.C:
		case <-d.synced:
			d.synced = nil
			d.locked(func() { d.machine.synced = true })
		case handle := <-d.responses:
			d.locked(handle)
		}
	}
}

// step executes a step of the machine. It returns the time until the next step, or -1 if the member has ended.
func (d *driver) step(ctx context.Context) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, now := d.machine, d.now()
	if d.pending {
		d.gate.set(m.grants(now, d.gate.busy()))
	} else if r := m.step(now, d.gate); r != nil {
		d.send(ctx, r)
	}
	d.metrics.update(now)
	d.publish()
	late, next := d.gate.overdue(now)
	switch {
	case late > 0:
		d.metrics.overrun.Add(float64(late))
		return 0, fmt.Errorf("ring %q: %w: %d units of work in slots that this member no longer owns are still running %s after the end of their contexts: the process must exit", d.config.Name, ErrOverrun, late, d.config.GracePeriod)
	case m.phase == finished:
		return -1, m.err
	}
	if err := d.permanentError(); err != nil {
		return 0, err
	}
	at := min(m.nextWake(now, d.gate.busy()), next)
	return max(at-d.now(), 0), nil
}

// permanentError returns the error because of which this member can never take part, or nil.
func (d *driver) permanentError() error {
	if !d.machine.valid && errors.Is(d.machine.lastErr, errRights) {
		return d.machine.lastErr
	}
	if err := d.leases.LastError(); d.synced != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return d.server.explain("list and watch", err)
	}
	return nil
}

func (d *driver) send(ctx context.Context, r *request) {
	d.pending = true
	logger := klog.FromContext(ctx)
	switch r.verb {
	case writeTable:
		logger.V(2).Info("Writing a table", "epoch", r.table.epoch, "members", r.table.members)
	case expel:
		logger.Info("Expelling a member that does not renew its Lease", "member", r.lease.id)
	default:
	}
	d.running.Go(func() {
		requestCtx, cancel := context.WithTimeout(ctx, d.machine.requestTimeout())
		defer cancel()
		a := d.server.do(requestCtx, r)
		if a.err != nil && ctx.Err() == nil {
			logger.V(2).Info("Failed to access the Leases of the ring", "err", a.err)
		}
		d.responses <- func() {
			d.pending = false
			d.machine.handle(d.now(), r, a)
		}
	})
}

// New returns a member of a ring; run it with Run.
func New(config Config) (*Ring, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	r := &Ring{
		config: config, server: newServer(config), start: time.Now(), assigned: client.NewChangingRanges(client.Ranges{}),
		followers: map[*func() client.Ranges]struct{}{}, changed: make(chan struct{}), gains: map[*gain]struct{}{}, wake: make(chan struct{}, 1),
	}
	r.gate = newGate(r.now, config.GracePeriod)
	r.machine = newMachine(config, func() string { return config.ID + "-" + rand.String(randomLength) })
	r.metrics = newMetrics(r)
	return r, nil
}

// Run takes part in the ring, and runs parts that work on the owned hashes, e.g. informers and controllers. When ctx
// ends, or a part returns, the member first gives its slots to others. This takes a few seconds, during which the
// parts continue. Run then ends the contexts of the parts, and returns when all parts have returned. Run fails if a
// part does, or if the member has no access to Leases or another configuration than the others. It returns ErrOverrun
// without waiting for the parts. After Run has returned, no work begins, and the contexts of all work have ended.
func (r *Ring) Run(ctx context.Context, parts ...func(ctx context.Context) error) error {
	ran := false
	r.locked(func() { ran, r.ran = r.ran, true })
	if ran {
		return fmt.Errorf("ring %q was already run: create a new one", r.config.Name)
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			defer leave()
			ended <- part(working)
		}()
	}
	err := r.take(ctx)
	if errors.Is(err, ErrOverrun) {
		return err
	}
	stop()
	for range parts {
		err = errors.Join(err, <-ended)
	}
	return err
}

func (r *Ring) take(ctx context.Context) error {
	if r.config.Metrics != nil {
		for _, c := range r.metrics.all {
			if err := r.config.Metrics.Register(c); err != nil {
				return fmt.Errorf("ring %q: registering the metrics: %w", r.config.Name, err)
			}
			defer r.config.Metrics.Unregister(c)
		}
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("ring", r.config.Name))
	// Leaving takes requests after ctx has ended.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	defer r.end()

	leases := leaseResource.Informer(r.config.Leases, client.InformerOptions[*coordinationv1.Lease]{
		Namespace: r.config.Namespace, LabelSelector: r.server.selector(), Name: "leases of ring " + r.config.Name,
	})
	leases.AddEventHandler(client.Handler[*coordinationv1.Lease]{
		OnAdd:    func(l *coordinationv1.Lease, _ bool) { r.observe(l, false) },
		OnUpdate: func(_, l *coordinationv1.Lease) { r.observe(l, false) },
		OnDelete: func(l *coordinationv1.Lease, _ bool) { r.observe(l, true) },
	})
	running.Go(func() { _ = leases.Run(working) })
	d := &driver{Ring: r, leases: leases, synced: leases.Synced(), responses: make(chan func(), 1), running: &running}
	return d.loop(ctx, working)
}

const checkInterval = 10 * time.Millisecond

// checkLoaded updates the incoming slots that all informers have loaded, and returns the time until the next check. It
// calls informers without the lock of the ring, because their handlers may call the ring.
func (d *driver) checkLoaded() time.Duration {
	var coming slots
	var all []*func() client.Ranges
	d.locked(func() {
		if coming = d.machine.incoming(); !coming.empty() {
			all = slices.Collect(maps.Keys(d.followers))
		}
	})
	loaded := coming
	for _, follower := range all {
		ranges := (*follower)()
		for slot := range loaded.all {
			var one slots
			if one.add(slot); !ranges.Covers(one.ranges(d.config.Key)) {
				loaded = loaded.minus(one)
			}
		}
	}
	d.locked(func() { d.machine.ready = loaded })
	if loaded != coming {
		return checkInterval
	}
	return never
}
