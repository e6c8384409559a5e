package percluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// Judge returns the logical cluster whose webhooks and policies apply to a write, and the logical cluster
// that is written to. They differ for bound APIs, to which the webhooks and policies of the provider apply.
func Judge(ctx context.Context, a admission.Attributes) (judge, in logicalcluster.Name, err error) {
	if in, err = request.ClusterNameFrom(ctx); err != nil {
		return "", "", err
	}
	if provider := request.ProviderFrom(ctx); provider != "" {
		return provider, in, nil
	}
	return in, in, nil
}

// AnnotateCluster sets the annotation kcp.io/cluster on the object of a write until undo is called, because
// webhooks and policies of other logical clusters need it. Storage sets it on the stored object anyway.
func AnnotateCluster(a admission.Attributes, in logicalcluster.Name) (undo func()) {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return func() {} // e.g. a deletion, whose old object has the annotation
	}
	set := func(value string, ok bool) (before string, had bool) {
		annotations := object.GetAnnotations()
		before, had = annotations[logicalcluster.AnnotationKey]
		switch {
		case ok && annotations == nil:
			annotations = map[string]string{logicalcluster.AnnotationKey: value}
		case ok:
			annotations[logicalcluster.AnnotationKey] = value
		default:
			delete(annotations, logicalcluster.AnnotationKey)
		}
		if len(annotations) == 0 {
			annotations = nil
		}
		object.SetAnnotations(annotations)
		return before, had
	}
	before, had := set(in.String(), true)
	return func() { set(before, had) }
}

// Pausing returns interfaces that release the seat of the request of ctx (request.Pause) while a custom
// resource is converted. Conversion may call a slow webhook, and upstream passes no context.
func Pausing(ctx context.Context, o admission.ObjectInterfaces) admission.ObjectInterfaces {
	return pausing{o, ctx}
}

type pausing struct {
	admission.ObjectInterfaces
	ctx context.Context //nolint:containedctx // of the one request; the interface has none
}

func (p pausing) GetObjectConvertor() runtime.ObjectConvertor {
	return convertor{p.ObjectInterfaces.GetObjectConvertor(), p.ctx}
}

type convertor struct {
	runtime.ObjectConvertor
	ctx context.Context //nolint:containedctx // as above
}

func (c convertor) Convert(in, out, meta any) error {
	if _, custom := in.(*unstructured.Unstructured); custom {
		defer request.Pause(c.ctx)()
	}
	return c.ObjectConvertor.Convert(in, out, meta)
}

// IsServer reports whether a request is from the server itself. Webhooks and policies do not apply to it,
// because its controllers serve all logical clusters with few workers. A webhook that does not respond would
// block them for other logical clusters, and one that denies all requests would prevent the deletion of
// namespaces and workspaces.
func IsServer(u user.Info) bool { return u != nil && u.GetName() == user.APIServerUser }

// readyTimeout is the time that a write waits for informers after a server start, as in upstream's plugins.
const readyTimeout = 10 * time.Second

var errNotReady = errors.New("not yet ready to handle request")

// Ready are informers that must be synced before a write is admitted.
type Ready []client.Runner

// Wait waits until all informers have synced. After a timeout it returns an error that clients retry, because
// a denial would be final.
func (r Ready) Wait(ctx context.Context) error {
	for _, informer := range r {
		if informer.HasSynced() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		err := informer.WaitForSync(ctx)
		cancel()
		if err != nil {
			return request.Unavailable(errNotReady.Error())
		}
	}
	return nil
}

// Objects are admission configuration of all logical clusters, including replicas from other shards
// (replicas.Dual).
type Objects interface {
	client.Runner
	// Read returns an error until the objects of all other shards have been read.
	Read() error
}

// Judges are the informers and replicas that must be complete before a write is admitted.
type Judges struct {
	ready Ready
	hooks []Objects
	local func(cluster logicalcluster.Name) bool
}

// NewJudges returns Judges for namespaces and hooks. local reports whether a logical cluster is on this
// shard.
func NewJudges(namespaces client.Runner, local func(cluster logicalcluster.Name) bool, hooks ...Objects) *Judges {
	j := &Judges{ready: Ready{namespaces}, hooks: hooks, local: local}
	for _, h := range hooks {
		j.ready = append(j.ready, h)
	}
	return j
}

// Wait waits like Ready.Wait. If the configuration of another shard is incomplete, it does not wait, but
// returns an error that clients retry.
func (j *Judges) Wait(ctx context.Context, a admission.Attributes, judge, in logicalcluster.Name) error {
	if err := j.ready.Wait(ctx); err != nil || judge == in || j.local(judge) {
		return err
	}
	for _, hooks := range j.hooks {
		if err := hooks.Read(); err != nil {
			return apierrors.NewTooManyRequests(fmt.Sprintf("the webhooks and policies of the provider of %s have not been read yet, try again: %v", a.GetResource().GroupResource(), err), 1)
		}
	}
	return nil
}
