package authz

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

// maxAnswers limits the cached answers.
const maxAnswers = 10_000

// Answers caches access reviews of other servers. It is safe for concurrent use.
type Answers struct {
	allowedFor, deniedFor time.Duration

	known  *cache.LRUExpireCache
	asking singleflight.Group
}

// NewAnswers returns Answers that caches reviews that allow or deny for the given times; 0 disables caching.
func NewAnswers(allowedFor, deniedFor time.Duration) *Answers {
	return &Answers{allowedFor: allowedFor, deniedFor: deniedFor, known: cache.NewLRUExpireCache(maxAnswers)}
}

// May returns the answer to a review by the server where. If it is not cached, ask is called once for
// concurrent equal reviews; its context does not end with any of the requests.
func (a *Answers) May(ctx context.Context, where string, review *authorizationv1.SubjectAccessReview, ask func(context.Context) (bool, error)) (bool, error) {
	text, err := json.Marshal(review.Spec)
	if err != nil {
		return false, fmt.Errorf("encoding the access review of user %q: %w", review.Spec.User, err)
	}
	// A digest, because users control the size of a review by the groups and names that they impersonate.
	sum := sha256.Sum256(append([]byte(where+"|"), text...))
	key := string(sum[:])
	if may, ok := a.known.Get(key); ok {
		return may.(bool), nil
	}
	done := a.asking.DoChan(key, func() (any, error) {
		may, err := ask(context.WithoutCancel(ctx))
		keep := a.deniedFor
		if may {
			keep = a.allowedFor
		}
		if err == nil && keep > 0 {
			a.known.Add(key, may, keep)
		}
		return may, err
	})
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case result := <-done:
		may, _ := result.Val.(bool)
		return may, result.Err
	}
}
