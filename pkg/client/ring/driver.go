package ring

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// driver does what the machine says, while the ring runs.
type driver struct {
	*Ring

	leases  *client.Informer[*coordinationv1.Lease]
	synced  <-chan struct{}
	answers chan func()
	asked   bool
	running *sync.WaitGroup
}

func (d *driver) loop(ctx, working context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := ctx.Done()
	for {
		loading := d.lookLoaded()
		wait, err := d.step(working)
		if err != nil || wait < 0 {
			return err
		}
		timer.Reset(min(wait, loading))
		select {
		case <-ended:
			ended = nil
			d.locked(func() { d.machine.drain(d.now()) })
		case <-d.look:
		case <-d.gate.idle:
		case <-timer.C:
		case <-d.synced:
			d.synced = nil
			d.locked(func() {
				d.showSeen()
				d.machine.sawAll()
			})
		case answered := <-d.answers:
			d.locked(answered)
		}
	}
}

func (d *driver) locked(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

// step has the machine take a step. It returns how long nothing is to be done unless something
// happens; less than 0 if all is over.
func (d *driver) step(ctx context.Context) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, now := d.machine, d.now()
	before := m.table.table
	d.showSeen()
	if d.asked {
		d.gate.set(m.grants(now, d.gate.busy()))
	} else if r := m.step(now, d.gate); r != nil {
		d.ask(ctx, r)
	}
	d.metrics.note(now, before)
	d.tell()
	late, next := d.gate.overdue(now)
	switch {
	case late > 0:
		d.metrics.overran(late)
		return 0, fmt.Errorf("ring %q: %w: %d began on what is not this member's any more, and %s after their contexts they are not over: end the process", d.config.Name, ErrOverrun, late, d.config.GracePeriod)
	case m.phase == gone:
		return -1, m.err
	}
	if err := d.hopeless(); err != nil {
		return 0, err
	}
	at := min(m.wake(now, d.gate.busy()), next)
	return max(at-d.now(), 0), nil
}

// hopeless returns why this member will never take part, if it is known.
func (d *driver) hopeless() error {
	if !d.machine.valid && errors.Is(d.machine.lastErr, errRights) {
		return d.machine.lastErr
	}
	if err := d.leases.LastError(); d.synced != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return d.server.explain("list and watch", err)
	}
	return nil
}

// ask asks the server, beside all else.
func (d *driver) ask(ctx context.Context, r *request) {
	d.asked = true
	logger := klog.FromContext(ctx)
	switch r.verb {
	case writeTable:
		logger.V(2).Info("Writes a table", "epoch", r.table.epoch, "members", r.table.members)
	case expel:
		logger.Info("Expels a member that was not heard of", "member", r.lease.id)
	default:
	}
	d.running.Go(func() {
		asking, cancel := context.WithTimeout(ctx, d.machine.requestTimeout())
		defer cancel()
		a := d.server.do(asking, r)
		if a.err != nil && ctx.Err() == nil {
			logger.V(2).Info("Cannot reach the Leases of the ring as it should", "err", a.err)
		}
		d.answers <- func() {
			d.asked = false
			d.machine.answered(d.now(), r, a)
		}
	})
}

// showSeen tells the machine what the watch has shown, under the lock.
func (d *driver) showSeen() {
	now, m := d.now(), d.machine
	for _, s := range d.seen {
		switch t, err := tableOf(s.lease); {
		case s.lease.Name != d.config.Name && s.deleted:
			m.sawDeletion(leaseOf(d.config.Name, s.lease).id)
		case s.lease.Name != d.config.Name:
			m.saw(now, leaseOf(d.config.Name, s.lease))
		case !s.deleted && err == nil:
			m.sawTable(now, t)
		}
	}
	d.seen = nil
}

// New returns a member of the ring that config describes. It does nothing before it runs.
func New(config Config) (*Ring, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	r := &Ring{
		config: config, server: newServer(config), start: time.Now(), holds: client.NewChangingRanges(client.Ranges{}),
		followers: followers{holds: map[*func() client.Ranges]struct{}{}},
		changed:   make(chan struct{}), gains: map[*gain]struct{}{}, look: make(chan struct{}, 1),
	}
	r.gate = newGate(r.now, config.GracePeriod)
	r.machine = newMachine(config.settings(), func() string { return config.ID + "-" + rand.String(randomLength) })
	r.metrics = newMetrics(r)
	return r, nil
}

// Run takes part in the ring, and runs what works on what this member has, such as informers and
// controllers. When ctx ends, it gives away what it has, which takes a few seconds if others are
// there to take it and on which the parts go on to work meanwhile; then it ends the contexts of the
// parts, and returns when these have. A part that returns before has this member leave. Run fails
// if a part does, if this member may not have Leases, or has another configuration than the others;
// and with ErrOverrun, without waiting for the parts: the process has to end at once. When it has
// returned, no work begins, and the contexts of all work have ended.
func (r *Ring) Run(ctx context.Context, parts ...func(ctx context.Context) error) error {
	r.mu.Lock()
	if r.ran {
		r.mu.Unlock()
		return fmt.Errorf("ring %q was run already: make a new one", r.config.Name)
	}
	r.ran = true
	r.mu.Unlock()
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

// take takes part in the ring until ctx ends, and what this member has is given away.
func (r *Ring) take(ctx context.Context) error {
	if r.config.Metrics != nil {
		if err := r.config.Metrics.Register(r.metrics); err != nil {
			return fmt.Errorf("ring %q: registering the metrics: %w", r.config.Name, err)
		}
		defer r.config.Metrics.Unregister(r.metrics)
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("ring", r.config.Name))
	// What is left to do when ctx has ended takes the server, too.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	defer r.end()

	leases := leaseResource.Informer(r.config.Leases, client.InformerOptions[*coordinationv1.Lease]{
		Namespace: r.config.Namespace, LabelSelector: r.server.selector(), Name: "leases of ring " + r.config.Name,
	})
	leases.AddEventHandler(client.Handler[*coordinationv1.Lease]{
		OnAdd:    func(l *coordinationv1.Lease, _ bool) { r.saw(sighting{lease: l}) },
		OnUpdate: func(_, l *coordinationv1.Lease) { r.saw(sighting{lease: l}) },
		OnDelete: func(l *coordinationv1.Lease, _ bool) { r.saw(sighting{lease: l, deleted: true}) },
	})
	running.Go(func() { _ = leases.Run(working) })
	synced := make(chan struct{})
	running.Go(func() {
		if leases.WaitForSync(working) == nil {
			close(synced)
		}
	})
	d := &driver{Ring: r, leases: leases, synced: synced, answers: make(chan func(), 1), running: &running}
	return d.loop(ctx, working)
}

// lookInterval is how often a member looks whether what comes to it is loaded.
const lookInterval = 10 * time.Millisecond

// lookLoaded has the machine know which of the slots that come to this member are loaded. It returns
// when to look again. Informers are asked without the lock of the ring, since their handlers may
// ask the ring.
func (d *driver) lookLoaded() time.Duration {
	var coming slots
	d.locked(func() { coming = d.machine.coming() })
	loaded := coming
	if !coming.empty() {
		loaded = d.followers.loaded(d.config.Key, coming)
	}
	d.locked(func() { d.machine.ready = loaded })
	if loaded != coming {
		return lookInterval
	}
	return never
}
