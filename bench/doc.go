// Command bench measures the cost of the relay, as ratios to a floor: a bare gRPC server without any
// xDS, with the same options, that holds the same streams and broadcasts the same encoded bytes. Peers
// are the caches of go-control-plane behind its own server. README.md has the method and all
// results.
//
//	go run ./bench            all scenarios, about 40 minutes on two cores
//	go run ./bench -quick     five minutes, without the peers
//	go run ./bench -only b,c  some of them
//	go run ./bench -base main -only b1
//	                          the relay of commit main against this checkout's
//
// Each system is a process of its own (a role of this same program, or the relay's binary), and so are
// the clients (the swarm) and the relay's control plane (the origin). CPU and memory are those that the
// operating system accounts to the process.
package main
