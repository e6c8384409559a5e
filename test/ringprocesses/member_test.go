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

// Environment variables of a member.
const (
	nameEnv       = "RING_MEMBER"
	kubeconfigEnv = "RING_KUBECONFIG"
	linkEnv       = "RING_WIRE"
	defaultsEnv   = "RING_DEFAULTS"
)

const (
	// hashes is the number of hashes that are processed.
	hashes = 64
	// checkInterval is how often work checks its context, and pause the time between two pieces of
	// work on a hash.
	checkInterval = 20 * time.Millisecond
	pause         = 5 * time.Millisecond
	// maxWork is the maximum duration of a piece of work.
	maxWork = 300 * time.Millisecond
)

// config returns the configuration of a member without its name.
func config(defaults bool) ring.Config {
	if defaults {
		return ring.Config{LeaseDuration: 15 * time.Second}
	}
	return ring.Config{
		LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RenewInterval: 750 * time.Millisecond,
		GracePeriod: time.Second, RebalanceDelay: 100 * time.Millisecond,
	}
}

// runMember runs a member.
func runMember() error {
	server, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: os.Getenv(kubeconfigEnv)},
		&clientcmd.ConfigOverrides{CurrentContext: "shard-base"}, // without a logical cluster
	).ClientConfig()
	if err != nil {
		return err
	}
	server.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, os.Getenv(linkEnv))
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

// work processes a hash whenever the ring allows it.
func (w *worker) work(ctx context.Context, n uint64) {
	for ctx.Err() == nil {
		if work, end, ok := w.ring.Begin(ctx, n*(1<<64/hashes)); ok {
			w.process(work, n)
			end()
		}
		sleep(pause)
	}
}

// process runs one piece of work. It checks the context after reading the time.
func (w *worker) process(ctx context.Context, n uint64) {
	began := time.Now()
	lastChecked := began
	for until := began.Add(rand.N(maxWork)); time.Now().Before(until); sleep(checkInterval) {
		now := time.Now()
		if ctx.Err() != nil {
			break
		}
		lastChecked = now
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.out, n, began.UnixNano(), lastChecked.UnixNano())
}

func (w *worker) flush(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(100 * time.Millisecond)
		w.mu.Lock()
		_ = w.out.Flush()
		w.mu.Unlock()
	}
}
