package ring

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
)

// leaseResource is defined here because package kinds would link all other kinds.
var leaseResource = client.DefineResource[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "leases", client.WithProtobuf())

type server struct {
	leases                   *client.Client[*coordinationv1.Lease, *coordinationv1.LeaseList]
	ring, cluster, namespace string
	duration                 time.Duration
}

func newServer(c Config) *server {
	return &server{leaseResource.InNamespace(c.Leases, c.Namespace), c.Name, c.Leases.String(), c.Namespace, c.LeaseDuration}
}

func (s *server) selector() string { return labels.Set{ringLabel: s.ring}.String() }

func (s *server) do(ctx context.Context, r *request) response {
	var (
		a      response
		object *coordinationv1.Lease
		err    error
	)
	now := time.Now()
	switch r.verb {
	case createOwn, replace:
		object, err = s.leases.Create(ctx, r.lease.object(s.ring, s.duration, now), metav1.CreateOptions{})
	case renewOwn, expel:
		object, err = s.leases.Update(ctx, r.lease.object(s.ring, s.duration, now), metav1.UpdateOptions{})
	case readOwn:
		object, err = s.leases.Get(ctx, leaseName(s.ring, r.lease.id), metav1.GetOptions{})
	case deleteOwn, deleteOther:
		err = s.leases.Delete(ctx, leaseName(s.ring, r.lease.id), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &r.lease.uid, ResourceVersion: &r.lease.version},
		})
	case listAll:
		var list *coordinationv1.LeaseList
		if list, err = s.leases.List(ctx, metav1.ListOptions{LabelSelector: s.selector()}); err == nil {
			for i := range list.Items {
				if list.Items[i].Name != s.ring {
					a.leases = append(a.leases, leaseOf(s.ring, &list.Items[i]))
				}
			}
		}
	case readTable:
		object, err = s.leases.Get(ctx, s.ring, metav1.GetOptions{})
	case writeTable:
		written := r.table.object(s.ring, r.replaced, s.duration, now)
		if r.replaced.version == "" {
			object, err = s.leases.Create(ctx, written, metav1.CreateOptions{})
		} else {
			object, err = s.leases.Update(ctx, written, metav1.UpdateOptions{})
		}
	}
	if err == nil && object != nil {
		if r.verb == readTable || r.verb == writeTable {
			a.table, err = tableOf(object)
		} else {
			a.lease = leaseOf(s.ring, object)
		}
	}
	a.outcome = outcomeOf(r.verb, err)
	if a.outcome == failed {
		a.err = s.explain(r.verb, err)
	}
	return a
}

func outcomeOf(v verb, err error) outcome {
	creates := v == createOwn || v == replace
	switch {
	case err == nil:
		return done
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return conflict
	case apierrors.IsNotFound(err) && !creates:
		return notFound
	default:
		return failed
	}
}

// errRights is wrapped by errors that a retry cannot fix.
var errRights = errors.New("cannot use Leases")

// explain adds the action to take to an error.
func (s *server) explain(v verb, err error) error {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: a member of ring %q must be allowed to get, list, watch, create, update and delete leases.coordination.k8s.io in namespace %q of logical cluster %q, but may not %s: %w", errRights, s.ring, s.namespace, s.cluster, v, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: namespace %q of logical cluster %q, for the Leases of ring %q, does not exist: create it: %w", errRights, s.namespace, s.cluster, s.ring, err)
	default:
		return fmt.Errorf("ring %q: cannot %s: %w", s.ring, v, err)
	}
}
