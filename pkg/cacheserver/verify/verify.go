// Package verify compares all replicas on a cache server with the objects of the shards, field by field.
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
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// progressInterval is the interval of progress messages.
const progressInterval = 2 * time.Second

// Options configure Run.
type Options struct {
	// Cache is the kubeconfig of the cache server, and Shards are those of the shards, for users that may read all.
	Cache  string
	Shards []string
	// Progress receives progress messages.
	Progress io.Writer
}

// Validate returns an error if an option is missing.
func (o Options) Validate() error {
	var errs []error
	if o.Cache == "" {
		errs = append(errs, errors.New("--cache-kubeconfig is required: the kubeconfig of the cache server"))
	}
	if len(o.Shards) == 0 {
		errs = append(errs, errors.New("--shard-kubeconfig is required, once for each shard: a kubeconfig of the shard itself rather than of a front-proxy"))
	}
	if slices.Contains(o.Shards, "") {
		errs = append(errs, errors.New("--shard-kubeconfig must not be empty"))
	}
	return errors.Join(errs...)
}

// Run compares, and writes each difference and then a table with the numbers of differences to out. It returns the
// number of differences. An error means that the comparison is incomplete.
func Run(ctx context.Context, o Options, out io.Writer) (differences int, err error) {
	v := &verifier{out: out, progress: o.Progress, replicated: map[string]sets.Set[schema.GroupVersionResource]{}}
	_, _ = fmt.Fprintf(o.Progress, "Comparing the replicas of %d shards\n", len(o.Shards))
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.New("stopped before the comparison was complete")
		}
	}()
	cache, err := connect(o.Cache)
	if err != nil {
		return 0, fmt.Errorf("connecting to the cache server: %w", err)
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
			return 0, fmt.Errorf("%s and another kubeconfig are both for the shard %s: specify one for each shard", file, name)
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

// selected returns the resources that CachedResources replicate. Only the leading replica of a shard serves them.
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

func connect(file string) (*client.Factory, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", file, err)
	}
	return client.NewFactory(config)
}

// nameOf returns the name of a shard from its logical cluster for system objects.
func nameOf(ctx context.Context, shard *client.Factory) (string, error) {
	own, err := kinds.LogicalClusters.In(shard.Cluster(tenancy.AdminCluster.Path())).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the name of the shard, which a front-proxy does not have: %w", err)
	}
	name := own.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey]
	if name == "" {
		return "", errors.New("the server does not report the name of its shard")
	}
	return name, nil
}

type kind struct {
	resource                       schema.GroupResource
	objects, replicas, differences int
}

type verifier struct {
	out, progress io.Writer
	shards        []string
	// replicated are the resources that the CachedResources of each shard replicate.
	replicated   map[string]sets.Set[schema.GroupVersionResource]
	kinds        []kind
	lastProgress time.Time
	differences  int
}

// compare compares the replicas of one resource of one shard.
func (v *verifier) compare(ctx context.Context, name string, shard, cache *client.Factory, resource replication.Resource, of *kind) error {
	var objects, replicas int
	found, err := Compare(ctx, Config{Shard: name, Local: shard, Cache: cache}, resource, func(o, r int) {
		objects, replicas = o, r
		v.reportProgress(name, of.resource, o, r)
	})
	switch cached := apierrors.IsNotFound(err) && strings.Contains(of.resource.Resource, ":"); {
	case cached && v.replicated[name].Has(resource.GroupVersionResource):
		return fmt.Errorf("%s is not served although its CachedResources are replicated: the server has just started, or is not the leading replica of the shard: use the kubeconfig of the leading replica", of.resource)
	case cached:
		found, err = orphanedReplicas(ctx, cache.Shard(name).Wildcard(), resource)
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

// orphanedReplicas returns the replicas of a resource that no CachedResource of their shard selects.
func orphanedReplicas(ctx context.Context, replicas client.Scope, resource replication.Resource) (found []Difference, err error) {
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
		found = append(found, Difference{Resource: resource.GroupResource(), Key: client.KeyOf(&list.Items[i]), Problem: replication.ProblemOrphaned})
	}
	return found, nil
}

// reportProgress writes a progress message at most once per interval. It ignores errors.
func (v *verifier) reportProgress(shard string, resource schema.GroupResource, objects, replicas int) {
	if now := time.Now(); now.Sub(v.lastProgress) >= progressInterval {
		if !v.lastProgress.IsZero() {
			_, _ = fmt.Fprintf(v.progress, "Comparing %s of %s: %d replicas and %d objects read\n", resource, shard, replicas, objects)
		}
		v.lastProgress = now
	}
}

// others reports shards with replicas that were not compared.
func (v *verifier) others(ctx context.Context, cache *client.Factory) error {
	known, err := kinds.Shards.In(cache.Shard(corev1alpha1.RootShard).Cluster(core.RootCluster.Path())).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the shards on the cache server: %w", err)
	}
	registered := sets.New[string]()
	for i := range known.Items {
		registered.Insert(known.Items[i].Name)
	}
	// kcp's cache server has no checkpoints.
	checkpoints, err := replicationcheckpoints.Checkpoints.In(cache.Shard(request.Wildcard).Wildcard()).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("listing the checkpoints of shards: %w", err)
	}
	pushed := sets.New[string]()
	for i := range checkpoints.Items {
		pushed.Insert(checkpoints.Items[i].Annotations[request.ShardAnnotation])
	}
	for _, of := range []struct {
		what   string
		shards sets.Set[string]
	}{
		{"Not compared, no kubeconfig specified", registered.Difference(sets.New(v.shards...))},
		{"Not registered in root, replicas are ignored", pushed.Difference(registered)},
	} {
		if len(of.shards) > 0 {
			_, _ = plaintext.Fprintf(v.progress, "%s: %s\n", of.what, strings.Join(sets.List(of.shards), ", "))
		}
	}
	return nil
}

func (v *verifier) table() error {
	w := tabwriter.NewWriter(v.out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "KIND\tOBJECTS\tREPLICAS\tDIFFERENCES")
	for _, of := range v.kinds {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", of.resource, of.objects, of.replicas, of.differences)
	}
	return w.Flush()
}
