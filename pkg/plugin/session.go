// Package plugin is kubectl's plugin for Shardplane. It shows the shards and the tree of workspaces, explains why a
// workspace is not ready, and makes a workspace the current one of a kubeconfig. It uses the front-proxy like any
// client, and shows only objects that the user has access to.
//
//	walk   lists the workspaces below one, errors, and Events of workspaces that are not Ready
//	use    writes the kubeconfig, with the same contexts as kcp's plugin
package plugin

import (
	"bytes"
	"cmp"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
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

// The contexts and clusters that are written to the kubeconfig are those of kcp's plugin.
const (
	currentContext  = "workspace.kcp.io/current"
	previousContext = "workspace.kcp.io/previous"
)

// Use makes a workspace the current one of the kubeconfig.
type Use struct {
	*Options

	// Path is the workspace, in the format of resolve; ~ the home workspace; - the previous one; "" changes nothing.
	Path string
}

// Run changes the kubeconfig, and prints the current workspace.
func (u Use) Run(ctx context.Context, out io.Writer) error {
	s, err := u.open()
	if err != nil {
		return err
	}
	path := s.current
	switch u.Path {
	case "":
	case "-":
		path, err = s.back()
	default:
		path, err = s.switchTo(ctx, u.Path)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Current workspace is %q.\n", path)
	return err
}

// switchTo makes a workspace the current one if it is accessible.
func (s *session) switchTo(ctx context.Context, arg string) (logicalcluster.Path, error) {
	path, err := s.destination(ctx, arg)
	if err != nil {
		return path, err
	}
	// Requests to a workspace that is not ready would wait. Its parent has the reason, if the user can read it.
	if _, ws, err := s.workspace(ctx, path); err == nil && waits(ws) && !hasContent(ws) {
		return path, fmt.Errorf("workspace %s is not ready: %s", path, whyOf(ws))
	}
	if _, err := s.clients.Cluster(path).Resources(ctx, corev1.SchemeGroupVersion); err != nil {
		return path, s.explain(ctx, path, err)
	}
	config, old, err := s.kubeconfig()
	if err != nil {
		return path, err
	}
	cluster := config.Clusters[old.Cluster].DeepCopy()
	cluster.Server = s.clients.Host() + request.ClusterPath(path.String())
	fresh := old.DeepCopy()
	fresh.Namespace = ""
	fresh.AuthInfo = cmp.Or(s.options.overrides.Context.AuthInfo, fresh.AuthInfo)
	return path, s.replace(config, old, fresh, cluster)
}

// destination returns the path for an argument.
func (s *session) destination(ctx context.Context, arg string) (logicalcluster.Path, error) {
	home, below, _ := strings.Cut(arg, ":")
	if home != "~" {
		return s.resolve(arg)
	}
	ws, err := kinds.Workspaces.In(s.clients.Cluster(core.RootCluster.Path())).Get(ctx, "~", metav1.GetOptions{})
	if err != nil {
		return logicalcluster.Path{}, fmt.Errorf("getting your home workspace: %w", err)
	}
	path, ok := pathIn(ws.Spec.URL)
	if !ok {
		return path, fmt.Errorf("your home workspace has the URL %q, which contains no workspace", ws.Spec.URL)
	}
	if below != "" {
		path = path.Join(below)
	}
	if !request.ValidPath(path) {
		return path, fmt.Errorf("%q is not a path of a workspace", arg)
	}
	return path, nil
}

// back swaps the current and the previous workspace.
func (s *session) back() (logicalcluster.Path, error) {
	config, old, err := s.kubeconfig()
	if err != nil {
		return logicalcluster.Path{}, err
	}
	before := config.Contexts[previousContext]
	if before == nil || config.Clusters[before.Cluster] == nil {
		return logicalcluster.Path{}, errors.New("the kubeconfig has no previous workspace")
	}
	fresh, cluster := before.DeepCopy(), config.Clusters[before.Cluster].DeepCopy()
	path, ok := pathIn(cluster.Server)
	if !ok {
		return path, fmt.Errorf("the context %s has the server %q, which contains no workspace", previousContext, cluster.Server)
	}
	return path, s.replace(config, old, fresh, cluster)
}

// kubeconfig returns the kubeconfig from the files, and the current context, which flags may override.
func (s *session) kubeconfig() (*clientcmdapi.Config, *clientcmdapi.Context, error) {
	config, err := s.config.RawConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	name := cmp.Or(s.options.overrides.CurrentContext, config.CurrentContext)
	old := config.Contexts[name]
	if old == nil {
		return nil, nil, fmt.Errorf("the kubeconfig has no context %q: use --context", name)
	}
	old = old.DeepCopy()
	old.Cluster = cmp.Or(s.options.overrides.Context.Cluster, old.Cluster)
	if config.Clusters[old.Cluster] == nil {
		return nil, nil, fmt.Errorf("the kubeconfig has no cluster %q of the context %q", old.Cluster, name)
	}
	return &config, old, nil
}

// replace makes a context and its cluster the current ones, and the old ones the previous ones.
func (s *session) replace(config *clientcmdapi.Config, old, fresh *clientcmdapi.Context, cluster *clientcmdapi.Cluster) error {
	kept := old.DeepCopy()
	kept.Cluster, fresh.Cluster = previousContext, currentContext
	config.Clusters[previousContext], config.Contexts[previousContext] = config.Clusters[old.Cluster].DeepCopy(), kept
	config.Clusters[currentContext], config.Contexts[currentContext] = cluster, fresh
	config.CurrentContext = currentContext
	if err := clientcmd.ModifyConfig(s.config.ConfigAccess(), *config, true); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}
