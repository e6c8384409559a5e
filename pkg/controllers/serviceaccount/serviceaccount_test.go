package serviceaccount

import (
	"context"
	"errors"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

var errTest = errors.New("test")

func TestDefaultAccounts(t *testing.T) {
	key := client.Key{Cluster: "one", Name: "ns"}
	for name, tc := range map[string]struct {
		namespace       *corev1.Namespace
		err             error
		exists, creates bool
	}{
		"missing":               {namespace: &corev1.Namespace{}, creates: true},
		"existing":              {namespace: &corev1.Namespace{}, exists: true},
		"terminating namespace": {namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}},
		"deleted namespace":     {err: apierrors.NewNotFound(corev1.Resource("namespaces"), "ns")},
	} {
		t.Run(name, func(t *testing.T) {
			created := false
			r := &accountReconciler{
				namespace: func(got client.Key) (*corev1.Namespace, error) {
					require.Equal(t, key, got)
					return tc.namespace, tc.err
				},
				exists: func(client.Key) bool { return tc.exists },
				create: func(_ context.Context, got client.Key) error {
					require.Equal(t, key, got)
					created = true
					return nil
				},
			}
			_, err := r.reconcile(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, tc.creates, created)
		})
	}
}

func TestTokens(t *testing.T) {
	key := client.Key{Cluster: "one", Namespace: "ns", Name: "token"}
	secret := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: "token", Namespace: "ns", UID: "secret-uid",
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot", logicalcluster.AnnotationKey: "one"},
			},
			Type: corev1.SecretTypeServiceAccountToken,
		}
		change(s)
		return s
	}
	filled := func(s *corev1.Secret) {
		s.Annotations[corev1.ServiceAccountUIDKey] = "robot-uid"
		s.Data = map[string][]byte{"token": []byte("issued"), "namespace": []byte("ns"), "ca.crt": []byte("ca")}
	}
	for name, tc := range map[string]struct {
		secret         *corev1.Secret
		err, issueErr  error
		cached         types.UID
		want           func(*corev1.Secret)
		removed, fails bool
	}{
		"empty":                      {secret: secret(func(*corev1.Secret) {}), want: filled},
		"complete":                   {secret: secret(filled)},
		"other ca":                   {secret: secret(func(s *corev1.Secret) { filled(s); s.Data["ca.crt"] = []byte("old") }), want: filled},
		"existing token":             {secret: secret(func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("mine")} }), want: func(s *corev1.Secret) { filled(s); s.Data["token"] = []byte("mine") }},
		"deleted account":            {secret: secret(filled), err: apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "robot"), removed: true},
		"replaced account":           {secret: secret(func(s *corev1.Secret) { filled(s); s.Annotations[corev1.ServiceAccountUIDKey] = "former" }), removed: true},
		"stale account in the cache": {secret: secret(filled), cached: "former"},
		"unreadable account":         {secret: secret(filled), err: errTest, fails: true},
		"being deleted":              {secret: secret(func(s *corev1.Secret) { s.DeletionTimestamp = new(metav1.Now()) })},
		"no account annotation":      {secret: secret(func(s *corev1.Secret) { delete(s.Annotations, corev1.ServiceAccountNameKey) })},
		"token is not issued":        {secret: secret(func(*corev1.Secret) {}), issueErr: errTest, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			var updated *corev1.Secret
			removed := false
			r := &tokenReconciler{
				secret: func(client.Key) (*corev1.Secret, error) { return tc.secret, nil },
				cached: func(client.Key) (*corev1.ServiceAccount, error) {
					if tc.cached == "" {
						return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "robot")
					}
					return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "ns", UID: tc.cached}}, nil
				},
				live: func(_ context.Context, got client.Key) (*corev1.ServiceAccount, error) {
					require.Equal(t, client.Key{Cluster: "one", Namespace: "ns", Name: "robot"}, got)
					return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "ns", UID: "robot-uid"}}, tc.err
				},
				update: func(_ context.Context, _ client.Key, s *corev1.Secret) error {
					updated = s
					return nil
				},
				remove: func(context.Context, client.Key, *corev1.Secret) error {
					removed = true
					return nil
				},
				issue: func(cluster logicalcluster.Name, _ *corev1.ServiceAccount, _ *corev1.Secret) (string, error) {
					require.Equal(t, logicalcluster.Name("one"), cluster)
					return "issued", tc.issueErr
				},
				rootCA: func() []byte { return []byte("ca") },
			}
			before := tc.secret.DeepCopy()
			_, err := r.reconcile(t.Context(), key)
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.Equal(t, tc.removed, removed)
			require.Equal(t, before, tc.secret, "cached objects must not be changed")
			if tc.want == nil {
				require.Nil(t, updated)
				return
			}
			require.Equal(t, secret(tc.want), updated)
		})
	}
	require.Equal(t, []string{"one|ns/robot"}, IndexByAccount(secret(func(*corev1.Secret) {})))
}
