package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/test/bubble"
)

func workspace(name, shard, phase string, conditions ...conditionsv1alpha1.Condition) *node {
	return &node{name: name, workspace: &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{shardAnnotation: shard}},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Cluster: "c-" + name, Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"}},
		Status:     tenancyv1alpha1.WorkspaceStatus{Phase: corev1alpha1.LogicalClusterPhaseType(phase), Conditions: conditions},
	}}
}

// sample is a tree with workspaces that are not ready, unreachable, or not accessible.
func sample() *node {
	waiting := workspace("waiting", "", "Scheduling", conditionsv1alpha1.Condition{Type: "WorkspaceScheduled", Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no shard\nis available"})
	waiting.event = &corev1.Event{Reason: "Unschedulable", Message: "the same"}
	starting := workspace("starting", "two", "Initializing")
	starting.event = &corev1.Event{Reason: "InitializerExists", Message: "waits for root:one"}
	secret := workspace("secret", "root", "Ready")
	secret.err = apierrors.NewForbidden(corev1.Resource("workspaces"), "", errors.New("no"))
	unreachable := workspace("down", "two", "Ready")
	unreachable.err = apierrors.NewServiceUnavailable("the shard is unavailable")
	team := workspace("team", "root", "Ready")
	team.children = []*node{unreachable, starting}
	return &node{name: "root", children: []*node{secret, team, waiting}}
}

func TestTreeIsRendered(t *testing.T) {
	t.Parallel()
	require.Equal(t, `NAME               TYPE        PHASE          SHARD   CLUSTER      MESSAGE
root                                          root
├── secret         universal   Ready          root    c-secret     no permission to list child workspaces
├── team           universal   Ready          root    c-team
│   ├── down       universal   Ready          two     c-down       failed to list child workspaces: the shard is unavailable
│   └── starting   universal   Initializing   two     c-starting   Event InitializerExists: waits for root:one
└── waiting        universal   Scheduling             c-waiting    Unschedulable: no shard is available
`, string(renderTree(sample())))
}

// TestTextOfTenantsIsEscaped verifies that tenants cannot control the terminal or add lines or cells.
func TestTextOfTenantsIsEscaped(t *testing.T) {
	t.Parallel()
	const attack = "x\x1b[2J\u009b31m\u202e\x07y"
	evil := workspace("evil", "root\tReady", "Unavailable", conditionsv1alpha1.Condition{Type: "Mounted\n", Status: corev1.ConditionFalse, Reason: attack, Message: attack})
	evil.workspace.UID = "uid"
	evil.event = &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "uid"}, Type: attack, Reason: "R" + attack, Message: attack}
	evil.workspace.Spec.Mount = &tenancyv1alpha1.Mount{Reference: tenancyv1alpha1.ObjectReference{Kind: attack, Name: attack}}
	failing := workspace("failing", "root", "Ready")
	failing.err = errors.New(attack)
	described := renderWorkspace(logicalcluster.NewPath("root:evil"), evil.workspace, time.Now())
	renderEvents(described, evil.workspace, []corev1.Event{*evil.event}, time.Now())
	for _, text := range []string{string(renderTree(&node{name: "root", children: []*node{evil, failing}})), described.String()} {
		require.Equal(t, -1, strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }), "%q", text)
		require.Contains(t, text, `x\x1b[2J\u009b31m\u202e\ay`)
		require.Contains(t, text, `root\tReady`)
	}
}

// withLoad returns a shard that reports its load.
func withLoad(load shardload.Load, shard corev1alpha1.Shard) corev1alpha1.Shard {
	load.SetOnShard(&shard)
	return shard
}

func TestShardsAreRendered(t *testing.T) {
	t.Parallel()
	shard := func(name string, annotations map[string]string, conditions ...conditionsv1alpha1.Condition) corev1alpha1.Shard {
		return corev1alpha1.Shard{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"region": "north"}},
			Spec:       corev1alpha1.ShardSpec{BaseURL: "https://" + name},
			Status:     corev1alpha1.ShardStatus{Conditions: conditions},
		}
	}
	root := sample()
	root.children[1].children = root.children[1].children[:1] // shard two has not responded
	require.Equal(t, `NAME     HEALTH                                   TENANTS   WORKSPACES   NOT READY   LOAD                                          REGION   URL
root     Ready,Full                               2         2            0           2/2 workspaces, 30 objects, 4Mi/8Gi storage   north    https://root
three    Unknown,Other=False,SchedulingDisabled   0         0            0           <unknown>                                     north    https://three
two      NotReady,Unreachable,HeartbeatMissing    1         1            0           1 workspaces, 7/9 objects, 0 storage          north    https://two
<none>                                            1         1            1

The numbers are incomplete: the children of 2 workspaces could not be listed. For the reasons, use kubectl shardplane tree root.
`, string(renderShards([]corev1alpha1.Shard{
		withLoad(shardload.Load{Workspaces: shardload.Amount{Used: 1}, Objects: shardload.Amount{Used: 7, Limit: 9}},
			shard("two", nil, conditionsv1alpha1.Condition{Type: "Ready", Status: corev1.ConditionFalse, Reason: "HeartbeatMissing"})),
		withLoad(shardload.Load{Workspaces: shardload.Amount{Used: 2, Limit: 2}, Objects: shardload.Amount{Used: 30}, Storage: shardload.Amount{Used: 4 << 20, Limit: 8 << 30}}, shard("root", nil)),
		shard("three", map[string]string{"experimental.core.kcp.io/unschedulable": ""}, conditionsv1alpha1.Condition{Type: "Other", Status: corev1.ConditionFalse}),
	}, root)))
}

// TestReadiness verifies which results of requests and conditions make a shard Ready.
func TestReadiness(t *testing.T) {
	t.Parallel()
	none, succeeded, failed := &load{}, &load{succeeded: 1, failed: 1}, &load{failed: 1}
	for ready, want := range map[corev1.ConditionStatus]map[*load]string{
		"":                      {none: "Unknown", succeeded: "Ready", failed: "NotReady,Unreachable"},
		corev1.ConditionTrue:    {none: "Ready", succeeded: "Ready", failed: "NotReady,Unreachable"},
		corev1.ConditionFalse:   {none: "NotReady", succeeded: "NotReady", failed: "NotReady,Unreachable"},
		corev1.ConditionUnknown: {none: "Unknown", succeeded: "Ready", failed: "NotReady,Unreachable"},
	} {
		shard := &corev1alpha1.Shard{}
		if ready != "" {
			shard.Status.Conditions = conditionsv1alpha1.Conditions{{Type: conditionsv1alpha1.ReadyCondition, Status: ready}}
		}
		for l, health := range want {
			require.Equal(t, health, healthOf(shard, l), "Ready=%s, %+v", ready, l)
		}
	}
	require.Equal(t, "Ready,Deleting", healthOf(&corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, succeeded))
}

func TestResolve(t *testing.T) {
	t.Parallel()
	s := &session{current: logicalcluster.NewPath("root:team")}
	for arg, want := range map[string]string{
		"": "root:team", ".": "root:team", "..": "root", "a": "root:team:a", "root": "root", "root:b": "root:b", ":abc": "abc", "a:b": "a:b",
	} {
		path, err := s.resolve(arg)
		require.NoError(t, err, arg)
		require.Equal(t, want, path.String(), arg)
	}
	for _, arg := range []string{"A", "a/b", "root:", "..:a", "*"} {
		_, err := s.resolve(arg)
		require.ErrorContains(t, err, "is not a path of a workspace", arg)
	}
	s.current = logicalcluster.NewPath("root")
	_, err := s.resolve("..")
	require.ErrorContains(t, err, "root has no parent")
}

// options returns options with the flags, and a kubeconfig with root as the current workspace.
func options(t *testing.T, server string, args ...string) *Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server + "/clusters/root", InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "t"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u", Namespace: "n"}},
		CurrentContext: "x",
	}, file))
	o := NewOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	require.NoError(t, fs.Parse(append([]string{"--kubeconfig", file}, args...)))
	return o
}

// TestTimeout verifies the errors after a timeout and after Ctrl-C.
func TestTimeout(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	o := options(t, "https://"+listener.Addr().String(), "--request-timeout", "200ms")
	for _, watched := range []bool{false, true} {
		err = Tree{Options: o, Watch: Watch{Watched: watched}}.Run(t.Context(), os.Stdout, os.Stderr)
		require.ErrorContains(t, err, "no response within --request-timeout")
	}
	o = options(t, "https://"+listener.Addr().String())
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	err = Tree{Options: o}.Run(ctx, os.Stdout, os.Stderr)
	require.EqualError(t, err, "interrupted")
	rest, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.loading, &o.overrides).ClientConfig()
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, rest.Timeout, "by default")
}

// TestPreviousWorkspace verifies that the workspaces of a kubeconfig are swapped, and the rest is unchanged.
func TestPreviousWorkspace(t *testing.T) {
	t.Parallel()
	o := options(t, "https://proxy")
	var out strings.Builder
	require.EqualError(t, Use{Options: o, Path: "-"}.Run(t.Context(), &out), "the kubeconfig has no previous workspace")
	require.NoError(t, Use{Options: o}.Run(t.Context(), &out))
	require.Equal(t, "Current workspace is \"root\".\n", out.String())

	config, err := clientcmd.LoadFromFile(o.loading.ExplicitPath)
	require.NoError(t, err)
	config.Clusters[previousContext] = &clientcmdapi.Cluster{Server: "https://proxy/clusters/root:before"}
	config.Contexts[previousContext] = &clientcmdapi.Context{Cluster: previousContext, AuthInfo: "u"}
	require.NoError(t, clientcmd.WriteToFile(*config, o.loading.ExplicitPath))
	for _, want := range []string{"root:before", "root", "root:before"} {
		out.Reset()
		require.NoError(t, Use{Options: o, Path: "-"}.Run(t.Context(), &out))
		require.Equal(t, "Current workspace is \""+want+"\".\n", out.String())
		config, err = clientcmd.LoadFromFile(o.loading.ExplicitPath)
		require.NoError(t, err)
		require.Equal(t, "workspace.kcp.io/current", config.CurrentContext)
		require.Equal(t, "https://proxy/clusters/"+want, config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server)
		require.Equal(t, "https://proxy/clusters/root", config.Clusters[config.Contexts["x"].Cluster].Server)
	}
}

// TestWatch verifies that changes are shown, and that errors after the first output do not end the watch.
func TestWatch(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		var out, errOut strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		updates := []string{"a\n", "a\n", "no", "no", "a\n", "b\n", "end"}
		w := Watch{Watched: true}
		err := w.show(ctx, &out, &errOut, func(context.Context) ([]byte, error) {
			update := updates[0]
			updates = updates[1:]
			switch update {
			case "no":
				return nil, errors.New("unreachable")
			case "end":
				cancel()
			}
			return []byte(update), nil
		})
		require.NoError(t, err)
		require.Equal(t, "a\na\nb\n", out.String(), "the output must be shown again after a failure")
		require.Equal(t, "unreachable, retrying\n", errOut.String())
		require.EqualError(t, w.show(t.Context(), &out, &errOut, func(context.Context) ([]byte, error) { return nil, errors.New("wrong") }), "wrong")
	})
}
