package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// ErrGone is the cause of the end of a follower's context when the shard has no
// Shard object any more, and ErrMoved when it has got another address.
var (
	ErrRemoved = errors.New("the shard is not registered any more")
	ErrMoved   = errors.New("the shard has another address")
)

// Config is what a book is made of.
type Config struct {
	// Self is the name of the shard that keeps the book, and Local its clients. A
	// server that is no shard leaves both out.
	Self  string
	Local *client.Factory
	// Shards are the Shard objects of root. Whoever makes the book runs them.
	Shards *client.Informer[*corev1alpha1.Shard]
	// Access is how to authenticate with shards: a client configuration without a
	// host.
	Access *rest.Config
}

// Book knows the registered shards while Run runs. It is safe for concurrent use.
type Book struct {
	config Config
	self   *Peer
	// kick wakes Run up when Shard objects changed; it holds one wake-up.
	kick chan struct{}

	mu    sync.RWMutex
	peers map[string]*entry
	// unusable holds the addresses of Shard objects that are none.
	unusable  map[string]string
	followers map[*follower]struct{}
	complete  bool
}

// entry is a peer and who follows it.
type entry struct {
	*Peer
	ctx       context.Context //nolint:containedctx // the life of the peer in the book
	end       context.CancelCauseFunc
	following sync.WaitGroup
}

// follower is what Follow was given.
type follower struct {
	ctx     context.Context //nolint:containedctx // the life of the follower, over those of many peers
	use     func(context.Context, *Peer)
	running sync.WaitGroup
}

// New returns a book. It connects to nothing.
func New(config Config) *Book {
	b := &Book{
		config: config, kick: make(chan struct{}, 1),
		peers: map[string]*entry{}, unusable: map[string]string{}, followers: map[*follower]struct{}{},
	}
	if config.Local != nil {
		b.self = NewPeer(config.Self, config.Local)
	}
	return b
}

// Run follows the Shard objects until ctx is done. It returns when all followers
// have ended and the connections are closed.
func (b *Book) Run(ctx context.Context) error {
	defer b.config.Shards.AddEventHandler(b.config.Shards.KeyHandler(func(client.Key) {
		select {
		case b.kick <- struct{}{}:
		default:
		}
	})).Remove()
	defer b.close()
	synced := b.config.Shards.Synced()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
			synced = nil
			b.reconcile(ctx)
			b.mu.Lock()
			b.complete = true
			b.mu.Unlock()
		case <-b.kick:
			b.reconcile(ctx)
		}
	}
}

// reconcile makes the book agree with the Shard objects.
func (b *Book) reconcile(ctx context.Context) {
	wanted := map[string]string{}
	for _, obj := range b.config.Shards.Lister().List(nil) {
		if obj.Name != b.config.Self {
			wanted[obj.Name] = Address(obj)
		}
	}
	for name, e := range b.entries() {
		if _, ok := wanted[name]; !ok {
			klog.FromContext(ctx).Info("Shard is gone", "shard", name)
			b.remove(e, ErrRemoved)
		}
	}
	unusable := map[string]string{}
	for name, address := range wanted {
		old := b.entries()[name]
		if old != nil && old.URL == address {
			continue
		}
		peer, err := b.reach(name, address)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Ignoring the address of a Shard object", "shard", name, "baseURL", address)
			unusable[name] = address
			continue
		}
		if old != nil {
			b.remove(old, ErrMoved)
		}
		klog.FromContext(ctx).Info("Following shard", "shard", name, "baseURL", address)
		b.add(ctx, peer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unusable = unusable
}

// reach makes the clients of a shard.
func (b *Book) reach(name, address string) (*Peer, error) {
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || base.Scheme != "https" {
		return nil, errors.Join(err, errors.New("spec.baseURL must be an https URL"))
	}
	config := rest.CopyConfig(b.config.Access)
	config.Host = address
	clients, err := client.NewFactory(config)
	if err != nil {
		return nil, fmt.Errorf("shard %q: %w", name, err)
	}
	return &Peer{Name: name, URL: address, Clients: clients}, nil
}

// entries returns a copy of the peers of the book.
func (b *Book) entries() map[string]*entry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := make(map[string]*entry, len(b.peers))
	maps.Copy(all, b.peers)
	return all
}

// add takes a peer into the book, and starts who follows it.
func (b *Book) add(ctx context.Context, peer *Peer) {
	e := &entry{Peer: peer}
	e.ctx, e.end = context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peers[peer.Name] = e
	for f := range b.followers {
		f.start(e) //nolint:contextcheck // it runs in the context of both
	}
}

// remove takes a peer out of the book, waits until nobody follows it, and closes
// its connections.
func (b *Book) remove(e *entry, cause error) {
	b.mu.Lock()
	delete(b.peers, e.Name)
	b.mu.Unlock()
	e.end(cause)
	e.following.Wait()
	e.gone.Store(true)
	Close(e.Clients.CloseIdleConnections)
}

func (b *Book) close() {
	for _, e := range b.entries() {
		b.remove(e, context.Canceled)
	}
}

// Follow has use run, in a goroutine, for each other shard, known now or later,
// for as long as it is in the book at the same address. The cause of the end of
// its context is ErrGone or ErrMoved if that is why; use returns soon after. It
// has ended for one address before it begins for another. stop ends and awaits
// all of it; it must not be called from use.
func (b *Book) Follow(ctx context.Context, use func(context.Context, *Peer)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{ctx: ctx, use: use}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.followers[f] = struct{}{}
	for _, e := range b.peers {
		f.start(e) //nolint:contextcheck // it runs in the context of both
	}
	return func() {
		b.mu.Lock()
		delete(b.followers, f)
		b.mu.Unlock()
		cancel()
		f.running.Wait()
	}
}

// start has the follower use a peer. The caller holds the book's lock.
func (f *follower) start(e *entry) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	stop := context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })
	e.following.Add(1)
	f.running.Go(func() {
		defer e.following.Done()
		defer cancel(nil)
		defer stop()
		f.use(ctx, e.Peer)
	})
}

// Named returns a shard, the own one included, or nil for one that is not known.
func (b *Book) Named(name string) *Peer {
	if b.self != nil && name == b.config.Self {
		return b.self
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if e := b.peers[name]; e != nil {
		return e.Peer
	}
	return nil
}

// All returns the known shards, the own one first, and whether these are all:
// whether the Shard objects have been read.
func (b *Book) All() (all []*Peer, complete bool) {
	if b.self != nil {
		all = append(all, b.self)
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, e := range b.peers {
		all = append(all, e.Peer)
	}
	return all, b.complete
}

// Unusable reports whether the address in a Shard object was found to be none.
func (b *Book) Unusable(obj *corev1alpha1.Shard) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	address, ok := b.unusable[obj.Name]
	return ok && address == Address(obj)
}

// Address returns the URL of a shard.
func Address(obj *corev1alpha1.Shard) string { return strings.TrimSuffix(obj.Spec.BaseURL, "/") }
