package plugin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// defaultTimeout ends requests that nobody answers.
const defaultTimeout = "30s"

// Options say which server is asked, and as whom: the kubeconfig, and kubectl's flags.
type Options struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// NewOptions returns options as they are without flags.
func NewOptions() *Options {
	return &Options{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
}

// AddFlags adds kubectl's flags about connections.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.loading.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig; by default what KUBECONFIG says, or ~/.kube/config")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.ContextOverrideFlags.Namespace.LongName = "" // workspaces are in none
	flags.ClusterOverrideFlags.APIServer.ShortName = "s"
	flags.Timeout.Default = defaultTimeout
	clientcmd.BindOverrideFlags(&o.overrides, fs, flags)
}

// session is a connection to a server, as a kubeconfig and flags say it.
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
		return nil, errors.New("there is no kubeconfig, or no current context in it: give --kubeconfig and --context, or set KUBECONFIG")
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

// resolve returns the path that an argument means: with a colon, or root, it is a whole path, ..
// is the parent, and everything else is below the current workspace.
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
		return path, fmt.Errorf("%q is no path of a workspace: these are names with colons between them, such as root:team:demo", arg)
	}
	return path, nil
}
