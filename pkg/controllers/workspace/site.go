package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// requestTimeout bounds a request to another shard.
	requestTimeout = 10 * time.Second
	// silence is for how long a shard that did not answer is not asked again.
	silence = time.Second
)

// errUnreachable says that a shard does not answer.
var errUnreachable = errors.New("the shard does not answer")

// site is the access to the LogicalClusters of one shard.
type site struct {
	factory *client.Factory
	lister  client.Lister[*corev1alpha1.LogicalCluster]

	mu sync.Mutex
	// silent is until when the shard is not asked, and failing is set until it
	// answers again. Meanwhile one request at a time finds out whether it does.
	silent  time.Time
	failing bool
	probing bool
}

func newSite(factory *client.Factory, informer *client.Informer[*corev1alpha1.LogicalCluster]) *site {
	return &site{factory: factory, lister: informer.Lister()}
}

// cached returns what the watch has told about the LogicalCluster in cluster.
func (s *site) cached(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	lc, err := s.lister.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return lc, err == nil
}

// get asks the shard for the LogicalCluster in cluster.
func (s *site) get(ctx context.Context, cluster logicalcluster.Name) (lc *corev1alpha1.LogicalCluster, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		lc, err = s.client(cluster).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		return err
	})
	return lc, err
}

// create creates the LogicalCluster in cluster.
func (s *site) create(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.call(ctx, func(ctx context.Context) error {
		_, err := s.client(cluster).Create(ctx, lc, metav1.CreateOptions{})
		return err
	})
}

// remove deletes the LogicalCluster, if it is still the one given.
func (s *site) remove(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	return s.call(ctx, func(ctx context.Context) error {
		err := s.client(cluster).Delete(ctx, lc.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(lc.UID))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *site) client(cluster logicalcluster.Name) *client.Client[*corev1alpha1.LogicalCluster, *corev1alpha1.LogicalClusterList] {
	return client.LogicalClusters.In(s.factory.Cluster(cluster.Path()))
}

// call makes one request. A shard that did not answer is asked by one request
// at a time, and not all the time, so that the workers are there for Workspaces
// on other shards.
func (s *site) call(ctx context.Context, request func(context.Context) error) error {
	if !s.mayAsk() {
		return fmt.Errorf("%w: asking %s again in a moment", errUnreachable, s.factory.Host())
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := request(ctx)
	changed := s.heard(answered(err))
	switch logger := klog.FromContext(ctx); {
	case answered(err) && changed:
		logger.Info("A shard answers again", "url", s.factory.Host())
	case !answered(err) && changed:
		logger.Error(err, "A shard does not answer; it is asked again until it does", "url", s.factory.Host())
	}
	if !answered(err) {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return err
}

func (s *site) mayAsk() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.failing {
		return true
	}
	if s.probing || time.Now().Before(s.silent) {
		return false
	}
	s.probing = true
	return true
}

// heard notes whether the shard answered, and tells whether that is news.
func (s *site) heard(answer bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.failing == answer
	s.failing, s.probing = !answer, false
	if s.failing {
		s.silent = time.Now().Add(silence)
	}
	return changed
}

// answered tells whether err, if any, is what the shard said.
func answered(err error) bool {
	if err == nil {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsServiceUnavailable(err)
}
