package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/frontproxy"
	"github.com/shardplane/shardplane/pkg/shard"
)

// server is the interface of all servers.
type server interface {
	Run(ctx context.Context) error
	Handler() http.Handler
}

// goroutine is a server inside of the test process.
type goroutine struct {
	server server
	cancel context.CancelFunc
	ended  chan struct{}
	result error
}

// openGoroutine creates the server of a command line and runs it. It returns errors of the configuration, and does not wait for
// other components.
func openGoroutine(ctx context.Context, args []string) (*goroutine, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := newServer(ctx, args[0], args[1:])
	if err != nil {
		cancel()
		return nil, err
	}
	g := &goroutine{server: s, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		g.result = s.Run(ctx)
	}()
	return g, nil
}

func newServer(ctx context.Context, subcommand string, args []string) (server, error) {
	switch subcommand {
	case "shard":
		o := shard.NewOptions()
		if err := parse(o, args); err != nil {
			return nil, err
		}
		return shard.NewShard(ctx, o.Complete())
	case "front-proxy":
		o := frontproxy.NewOptions()
		if err := parse(o, args); err != nil {
			return nil, err
		}
		return frontproxy.NewFrontProxy(ctx, o.Complete())
	case "cache-server":
		o := cacheserver.NewOptions()
		if err := parse(o, args); err != nil {
			return nil, err
		}
		return cacheserver.NewCacheServer(ctx, o.Complete())
	default:
		return nil, fmt.Errorf("unknown server %q", subcommand)
	}
}

func parse(o interface{ Flags() cliflag.NamedFlagSets }, args []string) error {
	fs := pflag.NewFlagSet("component", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, section := range o.Flags().FlagSets {
		fs.AddFlagSet(section)
	}
	fs.IntP("v", "v", 0, "log level (ignored, because the test process configures logging)")
	return fs.Parse(args)
}

func (g *goroutine) stop()       { g.cancel() }
func (g *goroutine) kill() error { return errNotKillable }
func (g *goroutine) pause(stop bool) error {
	if stop {
		return errNotKillable
	}
	return nil
}
func (g *goroutine) done() <-chan struct{} { return g.ended }
func (g *goroutine) err() error            { return g.result }
