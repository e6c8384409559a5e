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

// ErrRemoved is the cause of the cancellation of a follower's context if the Shard object was deleted, and ErrMoved if
// the shard has another address.
var (
	ErrRemoved = errors.New("the shard is no longer registered")
	ErrMoved   = errors.New("the address of the shard has changed")
)

// Config configures a Book.
type Config struct {
	// Self is the name of the own shard, and Local its clients. Both are empty for a server that is not a shard.
	Self  string
	Local *client.Factory
	// Shards are the Shard objects of root. The caller runs the informer.
	Shards *client.Informer[*corev1alpha1.Shard]
	// Access is the client configuration for shards, without a host.
	Access *rest.Config
}

// Book contains the registered shards while Run runs. It is safe for concurrent use.
type Book struct {
	config Config
	self   *Peer
	// wake wakes Run when Shard objects have changed.
	wake chan struct{}

	mu    sync.RWMutex
	peers map[string]*entry
	// unusable contains the invalid addresses of Shard objects.
	unusable  map[string]string
	followers map[*follower]struct{}
	complete  bool
}

type entry struct {
	*Peer
	ctx       context.Context //nolint:containedctx // the context of one follower, which ends with it
	end       context.CancelCauseFunc
	following sync.WaitGroup
}

type follower struct {
	ctx     context.Context //nolint:containedctx // the life of the follower, over those of many peers
	use     func(context.Context, *Peer)
	running sync.WaitGroup
}

// NewPeerBook returns a book.
func NewPeerBook(config Config) *Book {
	b := &Book{
		config: config, wake: make(chan struct{}, 1),
		peers: map[string]*entry{}, unusable: map[string]string{}, followers: map[*follower]struct{}{},
	}
	if config.Local != nil {
		b.self = NewPeer(config.Self, config.Local)
	}
	return b
}

// Run follows the Shard objects until ctx is done, all followers have ended, and the connections are closed.
func (b *Book) Run(ctx context.Context) error {
	defer b.config.Shards.AddKeyHandler(func(client.Key) {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}, nil).Remove()
	defer func() {
		for _, e := range b.entries() {
			b.remove(e, context.Canceled)
		}
	}()
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
		case <-b.wake:
			b.reconcile(ctx)
		}
	}
}

func (b *Book) reconcile(ctx context.Context) {
	wanted := map[string]string{}
	for _, obj := range b.config.Shards.Lister().List(nil) {
		if obj.Name != b.config.Self {
			wanted[obj.Name] = Address(obj)
		}
	}
	for name, e := range b.entries() {
		if _, ok := wanted[name]; !ok {
			klog.FromContext(ctx).Info("Shard was removed", "shard", name)
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

func (b *Book) entries() map[string]*entry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.peers)
}

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

// remove removes a peer from the book, waits until its followers have ended, and closes its connections.
func (b *Book) remove(e *entry, cause error) {
	b.mu.Lock()
	delete(b.peers, e.Name)
	b.mu.Unlock()
	e.end(cause)
	e.following.Wait()
	e.removed.Store(true)
	Close(e.Clients.CloseIdleConnections)
}

// Follow runs use in a goroutine for each other shard, including shards that are registered later. When the context
// of use is canceled, use must return quickly. The cause is ErrRemoved or ErrMoved if applicable. use has ended for
// one address before it is started for another one. stop ends all goroutines and waits for them; it must not be
// called from use.
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

// start starts the follower for a peer, with the book's lock held.
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

// Named returns a shard, including the own one, or nil if it is not registered.
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

// All returns the registered shards, the own one first, and whether the Shard objects have been read.
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

// Unusable reports whether the address of a Shard object was found to be invalid.
func (b *Book) Unusable(obj *corev1alpha1.Shard) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	address, ok := b.unusable[obj.Name]
	return ok && address == Address(obj)
}

// Address returns the URL of a shard.
func Address(obj *corev1alpha1.Shard) string { return strings.TrimSuffix(obj.Spec.BaseURL, "/") }
