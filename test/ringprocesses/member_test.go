package ringprocesses

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

// The environment of a member.
const (
	nameEnv       = "RING_MEMBER"
	kubeconfigEnv = "RING_KUBECONFIG"
	wireEnv       = "RING_WIRE"
	defaultsEnv   = "RING_DEFAULTS"
)

const (
	// hashes are as many as each member tries to work on.
	hashes = 64
	// lookInterval is how often work looks at its context, and pause how long nothing is done
	// between two pieces of work on a hash.
	lookInterval = 20 * time.Millisecond
	pause        = 5 * time.Millisecond
	// longest is how long a piece of work takes at most.
	longest = 300 * time.Millisecond
)

// config is that of a member without what says which.
func config(defaults bool) ring.Config {
	if defaults {
		return ring.Config{LeaseDuration: 15 * time.Second}
	}
	return ring.Config{
		LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RenewInterval: 750 * time.Millisecond,
		GracePeriod: time.Second, RebalanceDelay: 100 * time.Millisecond,
	}
}

// runMember is the process of a member.
func runMember() error {
	server, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: os.Getenv(kubeconfigEnv)},
		&clientcmd.ConfigOverrides{CurrentContext: "shard-base"}, // without a logical cluster
	).ClientConfig()
	if err != nil {
		return err
	}
	server.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, os.Getenv(wireEnv))
	}
	factory, err := client.NewFactory(server)
	if err != nil {
		return err
	}
	c := config(os.Getenv(defaultsEnv) != "")
	c.Name, c.ID, c.Key = "processes", os.Getenv(nameEnv), client.ByCluster
	c.Leases, c.Namespace = factory.Cluster(logicalcluster.NewPath("root")), "default"
	r, err := ring.New(c)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	working, end := context.WithCancel(context.Background())
	defer end()
	w := &worker{ring: r, out: bufio.NewWriter(os.Stdout)}
	var running sync.WaitGroup
	for n := range uint64(hashes) {
		running.Go(func() { w.work(working, n) })
	}
	running.Go(func() { w.flush(working) })
	err = r.Run(ctx)
	end()
	if !errors.Is(err, ring.ErrOverrun) {
		running.Wait()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(err, w.out.Flush())
}

type worker struct {
	ring *ring.Ring
	mu   sync.Mutex
	out  *bufio.Writer
}

// work works on a hash whenever that may be.
func (w *worker) work(ctx context.Context, n uint64) {
	for ctx.Err() == nil {
		if work, end, ok := w.ring.Begin(ctx, n*(1<<64/hashes)); ok {
			w.piece(work, n)
			end()
		}
		hold(pause)
	}
}

// piece is one piece of work. That its context had not ended is seen after the time was read.
func (w *worker) piece(ctx context.Context, n uint64) {
	began := time.Now()
	looked := began
	for until := began.Add(rand.N(longest)); time.Now().Before(until); hold(lookInterval) {
		now := time.Now()
		if ctx.Err() != nil {
			break
		}
		looked = now
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.out, n, began.UnixNano(), looked.UnixNano())
}

func (w *worker) flush(ctx context.Context) {
	for ctx.Err() == nil {
		hold(100 * time.Millisecond)
		w.mu.Lock()
		_ = w.out.Flush()
		w.mu.Unlock()
	}
}
