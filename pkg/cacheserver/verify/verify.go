// Package verify compares what a cache server has of shards with what the shards have, field by
// field, past everything that keeps the two equal.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/plaintext"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/verify"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// progressInterval is how often it is told how far it got.
const progressInterval = 2 * time.Second

// Options say what to compare.
type Options struct {
	// Cache is the kubeconfig of the cache server, and Shards are those of the shards themselves,
	// each as a member of system:masters, or, to read, with a shard's own certificate.
	Cache  string
	Shards []string
	// Progress is where it is told how far it got.
	Progress io.Writer
}

// Validate returns what is wrong with the options.
func (o Options) Validate() error {
	var errs []error
	if o.Cache == "" {
		errs = append(errs, errors.New("--cache-kubeconfig is required: the kubeconfig of the cache server"))
	}
	if len(o.Shards) == 0 {
		errs = append(errs, errors.New("--shard-kubeconfig is required, once for each shard: a kubeconfig of the shard itself, and not of a front-proxy"))
	}
	if slices.Contains(o.Shards, "") {
		errs = append(errs, errors.New("--shard-kubeconfig must not be empty"))
	}
	return errors.Join(errs...)
}

// Run compares, and writes each difference to out and then how many there are of each kind. It
// returns how many there are in all. An error says that not everything could be compared.
func Run(ctx context.Context, o Options, out io.Writer) (differences int, err error) {
	v := &verifier{out: out, progress: o.Progress, replicated: map[string]sets.Set[schema.GroupVersionResource]{}}
	_, _ = fmt.Fprintf(o.Progress, "Comparing the replicas of %d shards\n", len(o.Shards))
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.New("stopped before everything was compared")
		}
	}()
	cache, err := connect(o.Cache)
	if err != nil {
		return 0, fmt.Errorf("the cache server: %w", err)
	}
	defer cache.CloseIdleConnections()
	shards := map[string]*client.Factory{}
	for _, file := range o.Shards {
		shard, err := connect(file)
		if err != nil {
			return 0, err
		}
		defer shard.CloseIdleConnections()
		name, err := nameOf(ctx, shard)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%s: %w", file, err)
		case shards[name] != nil:
			return 0, fmt.Errorf("%s is of the shard %s, as another one: give one for each shard", file, name)
		}
		shards[name] = shard
		v.shards = append(v.shards, name)
	}
	if err := v.others(ctx, cache); err != nil {
		return 0, err
	}
	cached, err := v.selected(ctx, shards)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, resource := range append(replication.Defaults(), cached...) {
		of := kind{resource: resource.GroupResource()}
		for _, name := range v.shards {
			if err := v.compare(ctx, name, shards[name], cache, resource, &of); err != nil {
				errs = append(errs, fmt.Errorf("shard %s: %w", name, err))
			}
			if ctx.Err() != nil {
				return v.differences, ctx.Err()
			}
		}
		v.kinds = append(v.kinds, of)
	}
	return v.differences, errors.Join(append(errs, v.table())...)
}

// selected returns what cached resources have replicated, by resource and identity. A shard shows under that what is
// selected, and nothing else, and only the one of its replicas that leads.
func (v *verifier) selected(ctx context.Context, shards map[string]*client.Factory) ([]replication.Resource, error) {
	found := map[schema.GroupVersionResource]bool{}
	for name, shard := range shards {
		v.replicated[name] = sets.New[schema.GroupVersionResource]()
		for _, of := range []client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]{kinds.CachedResources, kinds.ClusterCachedResources} {
			list, err := of.In(shard.Wildcard()).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("shard %s: listing %s: %w", name, of.Resource, err)
			}
			for i := range list.Items {
				one := &list.Items[i]
				if one.Annotations[apis.CachedKindAnnotation] != "" && request.ValidIdentity(one.Status.IdentityHash) {
					gvr := apis.ReplicatedOf(one)
					found[gvr] = true
					if counts := one.Status.ResourceCounts; counts != nil && counts.Cache > 0 {
						v.replicated[name].Insert(gvr)
					}
				}
			}
		}
	}
	all := make([]replication.Resource, 0, len(found))
	for gvr := range found {
		all = append(all, replication.Resource{GroupVersionResource: gvr})
	}
	slices.SortFunc(all, func(a, b replication.Resource) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// connect returns the clients of a kubeconfig's server.
func connect(file string) (*client.Factory, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", file, err)
	}
	return client.NewFactory(config)
}

// nameOf returns the name of a shard, which it notes in its logical cluster for itself.
func nameOf(ctx context.Context, shard *client.Factory) (string, error) {
	own, err := kinds.LogicalClusters.In(shard.Cluster(tenancy.AdminCluster.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("asking the shard for its name, which a front-proxy has not: %w", err)
	}
	name := own.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey]
	if name == "" {
		return "", errors.New("the server does not say which shard it is")
	}
	return name, nil
}

// kind is what was compared of a kind, of all shards.
type kind struct {
	resource                       schema.GroupResource
	objects, replicas, differences int
}

type verifier struct {
	out, progress io.Writer
	shards        []string
	// replicated is what the cached resources of each shard say that they have replicas of.
	replicated  map[string]sets.Set[schema.GroupVersionResource]
	kinds       []kind
	lastTold    time.Time
	differences int
}

// compare compares the replicas of one kind of one shard.
func (v *verifier) compare(ctx context.Context, name string, shard, cache *client.Factory, resource replication.Resource, of *kind) error {
	var objects, replicas int
	found, err := verify.Compare(ctx, verify.Config{Shard: name, Local: shard, Cache: cache}, resource, func(o, r int) {
		objects, replicas = o, r
		v.tell(name, of.resource, o, r)
	})
	switch cached := apierrors.IsNotFound(err) && strings.Contains(of.resource.Resource, ":"); {
	case cached && v.replicated[name].Has(resource.GroupVersionResource):
		return fmt.Errorf("it does not show %s, although its cached resources say that they are replicated: it has just started, or is a replica of the shard that does not lead; give the kubeconfig of the one that does", of.resource)
	case cached:
		found, err = leftOver(ctx, cache.Shard(name).Wildcard(), resource)
		objects, replicas = 0, len(found)
	}
	of.objects += objects
	of.replicas += replicas
	of.differences += len(found)
	v.differences += len(found)
	for _, d := range found {
		what := string(d.Problem)
		if len(d.Fields) > 0 {
			what += ": " + strings.Join(d.Fields, ", ")
		}
		object := d.Key.Name
		if d.Key.Namespace != "" {
			object = d.Key.Namespace + "/" + d.Key.Name
		}
		if _, err := plaintext.Fprintf(v.out, "%s %s %s %s: %s\n", name, d.Key.Cluster, d.Resource, object, what); err != nil {
			return fmt.Errorf("writing the differences: %w", err)
		}
	}
	return err
}

// leftOver returns the replicas of what no cached resource of their shard selects, or none, if the cache server does
// not know the resource either.
func leftOver(ctx context.Context, replicas client.Scope, resource replication.Resource) (found []verify.Difference, err error) {
	clients, err := replicas.Metadata()
	if err != nil {
		return nil, err
	}
	list, err := clients.Resource(resource.GroupVersionResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the replicas of %s: %w", resource.GroupResource(), err)
	}
	for i := range list.Items {
		found = append(found, verify.Difference{Resource: resource.GroupResource(), Key: client.KeyOf(&list.Items[i]), Problem: replication.ProblemOrphaned})
	}
	return found, nil
}

// tell says now and then how far it got. That nobody listens is no failure.
func (v *verifier) tell(shard string, resource schema.GroupResource, objects, replicas int) {
	if now := time.Now(); now.Sub(v.lastTold) >= progressInterval {
		if !v.lastTold.IsZero() {
			_, _ = fmt.Fprintf(v.progress, "Comparing %s of %s: %d replicas and %d objects read\n", resource, shard, replicas, objects)
		}
		v.lastTold = now
	}
}

// others says of which shards there are replicas that were not looked at, or count for nothing.
func (v *verifier) others(ctx context.Context, cache *client.Factory) error {
	known, err := kinds.Shards.In(cache.Shard(corev1alpha1.RootShard).Cluster(core.RootCluster.Path())).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the shards that the cache server knows: %w", err)
	}
	registered := sets.New[string]()
	for i := range known.Items {
		registered.Insert(known.Items[i].Name)
	}
	// kcp's cache server knows no marks.
	marks, err := replicationcheckpoints.Checkpoints.In(cache.Shard(request.Wildcard).Wildcard()).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("listing the marks of shards: %w", err)
	}
	pushed := sets.New[string]()
	for i := range marks.Items {
		pushed.Insert(marks.Items[i].Annotations[request.ShardAnnotation])
	}
	for _, of := range []struct {
		what   string
		shards sets.Set[string]
	}{
		{"Not compared, for want of a kubeconfig", registered.Difference(sets.New(v.shards...))},
		{"Not registered in root, so that their replicas count for nothing", pushed.Difference(registered)},
	} {
		if len(of.shards) > 0 {
			_, _ = plaintext.Fprintf(v.progress, "%s: %s\n", of.what, strings.Join(sets.List(of.shards), ", "))
		}
	}
	return nil
}

// table writes how many there are of each kind.
func (v *verifier) table() error {
	w := tabwriter.NewWriter(v.out, 0, 0, 3, ' ', 0)
	lines := []string{"KIND\tOBJECTS\tREPLICAS\tDIFFERENCES"}
	for _, of := range v.kinds {
		lines = append(lines, fmt.Sprintf("%s\t%d\t%d\t%d", of.resource, of.objects, of.replicas, of.differences))
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return w.Flush()
}
