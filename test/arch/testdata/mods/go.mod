module example.com/m

go 1.26

require (
	k8s.io/api v0.37.2
	k8s.io/apiserver v0.37.1
	k8s.io/kubernetes v1.37.2 // indirect
)

replace k8s.io/api => ./elsewhere

exclude k8s.io/client-go v0.1.0
