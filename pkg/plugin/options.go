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
