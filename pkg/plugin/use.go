package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

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
