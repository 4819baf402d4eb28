/* flood ADDRESS COUNT SIZE: so many UDP datagrams of SIZE bytes, as fast as they can be sent. None is lost in the guest: where the
 * device can't take more, it waits. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
    static char data[65536];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    int link = socket(AF_INET, SOCK_DGRAM, 0);
    if (argc != 4 || !inet_pton(AF_INET, argv[1], &to.sin_addr)) {
        fputs("flood ADDRESS COUNT SIZE\n", stderr);
        return 2;
    }
    for (int n = atoi(argv[2]); n; n--)
        if (sendto(link, data, atoi(argv[3]), 0, (void *)&to, sizeof to) < 0) {
            perror("flood");
            return 1;
        }
    return 0;
}
