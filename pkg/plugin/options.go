// Package plugin is kubectl's plugin for Shardplane. It shows the shards and the tree of workspaces, explains why a
// workspace is not ready, and makes a workspace the current one of a kubeconfig. It uses the front-proxy like any
// client, and shows only objects that the user has access to.
//
//	walk   lists the workspaces below one, errors, and Events of workspaces that are not Ready
//	use    writes the kubeconfig, with the same contexts as kcp's plugin
package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/plaintext"
	"github.com/shardplane/shardplane/pkg/request"
)

// defaultTimeout limits requests without a response.
const defaultTimeout = "30s"

// Options select the server and the user: the kubeconfig, and kubectl's flags.
type Options struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// NewOptions returns the default options.
func NewOptions() *Options {
	return &Options{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
}

// AddFlags adds kubectl's connection flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.loading.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig; the default is KUBECONFIG or ~/.kube/config")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.ContextOverrideFlags.Namespace.LongName = "" // workspaces are not namespaced
	flags.ClusterOverrideFlags.APIServer.ShortName = "s"
	flags.Timeout.Default = defaultTimeout
	clientcmd.BindOverrideFlags(&o.overrides, fs, flags)
}

type session struct {
	config  clientcmd.ClientConfig
	options *Options
	clients *client.Factory
	// current is the workspace of the kubeconfig's current context, or root.
	current logicalcluster.Path
}

func (o *Options) open() (*session, error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.loading, &o.overrides)
	rest, err := config.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig, or no current context in it: use --kubeconfig and --context, or set KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	clients, err := client.NewFactory(rest)
	if err != nil {
		return nil, err
	}
	s := &session{config: config, options: o, clients: clients, current: core.RootCluster.Path()}
	if path, ok := pathIn(rest.Host); ok {
		s.current = path
	}
	return s, nil
}

// pathIn returns the workspace in a URL.
func pathIn(url string) (path logicalcluster.Path, ok bool) {
	_, rest, _ := strings.Cut(url, request.ClusterPath(""))
	segment, _, _ := strings.Cut(rest, "/")
	path = logicalcluster.NewPath(segment)
	return path, request.ValidPath(path)
}

// resolve returns the path for an argument: absolute with a colon or if it is root, otherwise relative, or "..".
func (s *session) resolve(arg string) (logicalcluster.Path, error) {
	path := logicalcluster.NewPath(strings.TrimPrefix(arg, ":"))
	switch {
	case arg == "" || arg == ".":
		return s.current, nil
	case arg == "..":
		parent, _ := s.current.Parent()
		if parent.Empty() {
			return path, fmt.Errorf("%s has no parent", s.current)
		}
		return parent, nil
	case !strings.Contains(arg, ":") && arg != core.RootCluster.String():
		path = s.current.Join(arg)
	}
	if !request.ValidPath(path) {
		return path, fmt.Errorf("%q is not a path of a workspace: paths consist of names separated by colons, e.g. root:team:demo", arg)
	}
	return path, nil
}

const (
	// updateInterval is the minimum interval of updates, which is at least restFactor times the duration of an update.
	updateInterval = 2 * time.Second
	restFactor     = 10
	// clearScreen clears a terminal.
	clearScreen = "\x1b[H\x1b[2J"
)

// Watch shows an output once, or after each change.
type Watch struct {
	// Watched repeats the output until the context ends.
	Watched bool
}

// AddFlags adds the flag.
func (w *Watch) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&w.Watched, "watch", "w", false, "update the output after each change, at most every 2 s, until Ctrl-C")
}

// show shows the result of update. After the first success, it reports errors and retries.
func (w *Watch) show(ctx context.Context, out, errOut io.Writer, update func(context.Context) ([]byte, error)) error {
	shown, err := update(ctx)
	if err != nil {
		return err
	}
	before := ""
	if w.Watched && isTerminal(out) {
		before = clearScreen
	}
	paint := func() error {
		_, err := fmt.Fprintf(out, "%s%s", before, shown)
		return err
	}
	if !w.Watched {
		return paint()
	}
	failure := ""
	for changed, pause := true, updateInterval; ctx.Err() == nil; {
		if changed {
			if err := paint(); err != nil {
				return err // the output was closed
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		start := time.Now()
		next, err := update(ctx)
		pause = max(updateInterval, restFactor*time.Since(start))
		switch {
		case ctx.Err() != nil: // interrupted
		case err != nil:
			if err.Error() != failure {
				_, _ = plaintext.Fprintf(errOut, "%s, retrying\n", oneLine(err.Error()))
			}
			failure, changed = err.Error(), false
		default:
			changed = failure != "" || !bytes.Equal(next, shown)
			shown, failure = next, ""
		}
	}
	return nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// newTable returns a writer that aligns columns like kubectl.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 3, ' ', 0) }

func trimLines(text []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		out.Write(bytes.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
