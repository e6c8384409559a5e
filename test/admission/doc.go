// Package admission holds the tests of admission in a whole cluster: real
// webhook servers, policies and quotas in several logical clusters at once.
package admission
